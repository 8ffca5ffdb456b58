// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/lab"
)

// usage is how long a lab's programs and the machine have computed up to some moment.
type usage struct {
	programs map[string]lab.CPUTime // by the first 15 bytes of their names
	machine  time.Duration          // since its boot, all that was not idle
}

// usageNow looks at the control plane and at all nodes.
func usageNow(cluster *lab.Cluster) (usage, error) {
	hosts := []*lab.Host{cluster.ControlPlane()}
	for _, node := range cluster.Nodes() {
		hosts = append(hosts, node.Host)
	}
	now := usage{programs: map[string]lab.CPUTime{}}
	for _, host := range hosts {
		times, err := host.CPUTimes()
		if err != nil {
			return usage{}, err
		}
		for name, t := range times {
			sum := now.programs[name]
			now.programs[name] = lab.CPUTime{Own: sum.Own + t.Own, Ended: sum.Ended + t.Ended}
		}
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{}, fmt.Errorf("read how long the machine has computed: %w", err)
	}
	now.machine, err = busy(string(text))
	return now, err
}

// busy reads in /proc/stat how long all CPUs together were not idle.
func busy(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	// user, nice, system, idle, iowait, irq, softirq, steal; user has the time of guests.
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, errors.New("malformed /proc/stat")
	}
	var sum time.Duration
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("malformed /proc/stat: %w", err)
		}
		const idle, iowait, steal = 3, 4, 7
		if i != idle && i != iowait && i != steal {
			sum += time.Duration(ticks) * lab.Tick
		}
	}
	return sum, nil
}

// work is a row of the table of CPU time.
type work struct {
	title string
	of    func(usage) time.Duration
}

// works returns the rows of the table of CPU time. The last one contains all others.
func works() []work {
	own := func(names ...string) func(usage) time.Duration {
		return func(u usage) (sum time.Duration) {
			for _, name := range names {
				sum += u.programs[name].Own
			}
			return sum
		}
	}
	ended := func(name string) func(usage) time.Duration {
		return func(u usage) time.Duration { return u.programs[name].Ended }
	}
	const agent, containerd, shim = "berth-agent", "containerd", "containerd-shim"
	return []work{
		{"Berth's agents", own(agent)},
		{"the plugins that they ran", ended(agent)},
		{"Berth's schedulers", own("berth-scheduler")},
		{"Berth's controllers", own("berth-controlle")},
		{"the stock scheduler", own("kube-scheduler")},
		{"the stock controllers", own("kube-controller")},
		{"API server and etcd", own("kube-apiserver", "etcd")},
		{"kubelets", own("kubelet")},
		{"containerds", own(containerd)},
		{"their children: CNI plugins or Berth's shim, and starts of pods' shims", ended(containerd)},
		{"pods' shims, and runc", func(u usage) time.Duration { return u.programs[shim].Own + u.programs[shim].Ended }},
		{"all of the machine", func(u usage) time.Duration { return u.machine }},
	}
}
