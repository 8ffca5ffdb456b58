// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Snapshot is all metrics of one process at one moment. Immutable.
type Snapshot struct {
	Time     time.Time
	families map[string]*dto.MetricFamily
}

// Of returns a snapshot of metrics that were gathered in this process.
func Of(families []*dto.MetricFamily) *Snapshot {
	s := &Snapshot{Time: time.Now(), families: map[string]*dto.MetricFamily{}}
	for _, family := range families {
		s.families[family.GetName()] = family
	}
	return s
}

// Scrape reads the metrics that a program serves.
func Scrape(ctx context.Context, client *http.Client, url string) (*Snapshot, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", url, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape %s: %s", url, response.Status)
	}
	return read(response.Body)
}

func read(r io.Reader) (*Snapshot, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return &Snapshot{Time: time.Now(), families: families}, nil
}

// Interval is the time between two snapshots of one process.
type Interval struct{ Before, After *Snapshot }

// Labels of a metric.
type Labels map[string]string

// Counters returns by how much the counters of a name grew, summed by the key
// that is made of their labels. Counters that did not grow are left out.
func (i Interval) Counters(name string, key func(Labels) string) map[string]float64 {
	sums := map[string]float64{}
	add := func(s *Snapshot, sign float64) {
		for _, metric := range s.families[name].GetMetric() {
			value := metric.GetCounter().GetValue()
			if metric.Counter == nil {
				value = metric.GetUntyped().GetValue()
			}
			sums[key(labelsOf(metric))] += sign * value
		}
	}
	add(i.Before, -1)
	add(i.After, 1)
	for k, v := range sums {
		if v == 0 {
			delete(sums, k)
		}
	}
	return sums
}

// Requests returns how many requests an API server answered, by verb and
// resource/subresource.
func (i Interval) Requests() map[string]float64 {
	return i.Counters("apiserver_request_total", func(l Labels) string {
		return strings.TrimSuffix(l["verb"]+" "+l["resource"]+"/"+l["subresource"], "/")
	})
}

// CPU returns how long the process computed.
func (i Interval) CPU() time.Duration {
	seconds := i.Counters("process_cpu_seconds_total", func(Labels) string { return "" })[""]
	return time.Duration(seconds * float64(time.Second))
}

// Allocated returns how many bytes the process allocated, also ones that were freed.
func (i Interval) Allocated() float64 {
	return i.Counters("go_memstats_alloc_bytes_total", func(Labels) string { return "" })[""]
}

// Histogram returns what the histograms of a name that match counted, together.
func (i Interval) Histogram(name string, match func(Labels) bool) Histogram {
	var h Histogram
	counts := map[float64]float64{}
	add := func(s *Snapshot, sign float64) {
		for _, metric := range s.families[name].GetMetric() {
			if metric.Histogram == nil || !match(labelsOf(metric)) {
				continue
			}
			h.Count += sign * float64(metric.Histogram.GetSampleCount())
			h.sum += sign * metric.Histogram.GetSampleSum()
			for _, b := range metric.Histogram.GetBucket() {
				counts[b.GetUpperBound()] += sign * float64(b.GetCumulativeCount())
			}
		}
	}
	add(i.Before, -1)
	add(i.After, 1)
	for bound, count := range counts {
		if !math.IsInf(bound, 1) {
			h.buckets = append(h.buckets, bucket{bound, count})
		}
	}
	slices.SortFunc(h.buckets, func(a, b bucket) int {
		if a.bound < b.bound {
			return -1
		}
		return 1
	})
	return h
}

func labelsOf(metric *dto.Metric) Labels {
	labels := Labels{}
	for _, pair := range metric.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}

// Histogram counts durations.
type Histogram struct {
	Count   float64
	sum     float64 // seconds
	buckets []bucket
}

// bucket is how many were at most bound seconds long.
type bucket struct{ bound, count float64 }

// Mean is exact.
func (h Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return seconds(h.sum / h.Count)
}

// Quantile is between the bounds of a bucket, as Prometheus reckons: between two
// bounds of which one is twice the other it can be off by a factor of two.
func (h Histogram) Quantile(q float64) time.Duration {
	rank := q * h.Count
	lower, below := 0.0, 0.0
	for _, b := range h.buckets {
		if b.count >= rank && b.count > below {
			return seconds(lower + (b.bound-lower)*(rank-below)/(b.count-below))
		}
		lower, below = b.bound, b.count
	}
	return seconds(lower)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
