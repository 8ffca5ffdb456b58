// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/witness"
)

// upload sends the pod bytes from the client host and returns the rate in bits per second.
func (s *stage) upload(pod *v1.Pod, size int) (float64, error) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("file", "zeros")
	if err != nil {
		return 0, err
	}
	if _, err := file.Write(make([]byte, size)); err != nil {
		return 0, err
	}
	if err := form.Close(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+net.JoinHostPort(pod.Status.PodIP, witness.Port)+"/upload", &body)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", form.FormDataContentType())
	client := http.Client{Transport: &http.Transport{DialContext: s.Cluster.Client().Dial, DisableKeepAlives: true}}
	start := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	// The pod answers when it has all.
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, err
	}
	return float64(size) * 8 / time.Since(start).Seconds(), nil
}

// receives waits until the pod receives at about so many megabits per second.
func (s *stage) receives(pod *v1.Pod, limit float64) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("pod %s receives at %v Mbit/s", pod.Name, limit), func() error {
		rate, err := s.upload(pod, 3<<20)
		rate /= 1e6
		if err == nil && (rate < 0.5*limit || rate > 1.5*limit) {
			err = fmt.Errorf("it receives at %.1f Mbit/s", rate)
		}
		if err == nil {
			s.t.Logf("%s receives at %.1f Mbit/s, the limit is %v", pod.Name, rate, limit)
		}
		return err
	})
}

// TestBandwidth: a running pod follows its profile. The agent has the rights of the manifests here.
func TestBandwidth(t *testing.T) {
	sideBySide(t)
	s := newStage(t, "10.0.70.241-10.0.70.242")
	pod := s.start("limited", s.floating, netexec, notOn(fragile), annotated("kubernetes.io/ingress-bandwidth", "60M"))
	s.receives(pod, 60)
	_, err := s.berth.NetworkProfiles.Create(s.ctx, &v1alpha1.NetworkProfile{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec:       v1alpha1.NetworkProfileSpec{Scope: v1alpha1.ScopeNode, Ingress: &v1alpha1.BandwidthLimit{Rate: resource.MustParse("10M")}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.atEnd(func() { s.must(s.berth.NetworkProfiles.Delete(s.ctx, s.name, metav1.DeleteOptions{})) })
	s.kubectl("-n", s.name, "annotate", "pod", pod.Name, v1alpha1.AnnotationNetworkProfile+"="+s.name)
	s.receives(pod, 10)
}
