// SPDX-License-Identifier: Apache-2.0

// Suite has the cases of Kubernetes' end-to-end tests whose pods Berth may wire, as a program
// that Ginkgo's command runs. It takes the flags of upstream's e2e.test, and with --results
// writes a line of JSON for each case that has ended to a file.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"k8s.io/component-base/logs"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"

	"github.com/berth-dev/berth/test/upstream/result"

	// The cases, and what upstream's own program adds to each: nodes must be Ready after it,
	// and one that failed prints what its namespace had.
	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/common/network"
	_ "k8s.io/kubernetes/test/e2e/common/node"
	_ "k8s.io/kubernetes/test/e2e/dra"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/network"
	_ "k8s.io/kubernetes/test/e2e/node"
	_ "k8s.io/kubernetes/test/e2e/scheduling"
)

// verdict is Ginkgo's result of the whole suite.
type verdict struct{ failed bool }

func (v *verdict) Fail() { v.failed = true }

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	results := flag.String("results", "", "Where to write a line of JSON for each case that has ended.")
	flag.Duration("test.timeout", 0, "Of Go's tests, which Ginkgo's command gives to every suite; it has no effect.")
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	framework.TestContext.IPFamily = "ipv4" // of the lab's Services
	// Only now: the framework has Ginkgo preview the suite, which passes every case without running
	// it.
	if *results != "" {
		file, err := os.OpenFile(*results, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		ginkgo.ReportAfterEach(func(report ginkgo.SpecReport) {
			framework.ExpectNoError(json.NewEncoder(file).Encode(resultOf(report)), "write result")
		})
	}

	logs.InitLogs()
	defer logs.FlushLogs()
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	var all verdict
	ginkgo.RunSpecs(&all, "Kubernetes' end-to-end tests", suite, reporter)
	if all.failed {
		logs.FlushLogs()
		os.Exit(1) //nolint:gocritic // flushed
	}
}

func resultOf(report ginkgo.SpecReport) result.Result {
	r := result.Result{Case: report.FullText(), Seconds: report.RunTime.Seconds()}
	switch {
	case report.State == types.SpecStatePassed:
		r.State = result.Passed
	case report.State.Is(types.SpecStateSkipped | types.SpecStatePending):
		r.State, r.Message = result.LeftOut, report.Failure.Message
	default:
		r.State, r.Message = result.Failed, report.State.String()+": "+report.Failure.Message
	}
	return r
}
