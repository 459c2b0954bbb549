package profile_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// TestHostServices checks that a build's many programs displace neither the database nor containers.
func TestHostServices(t *testing.T) {
	for _, shape := range []profile.Shape{profile.ShapeSum, profile.ShapeTimestamps} {
		cfg := config()
		cfg.HostServices, cfg.Shape = 2, shape
		if shape == profile.ShapeSum {
			cfg.Aggregation = profile.AggregateLast // within one service; several services are added up nevertheless
		}
		a := profile.New(cfg)
		key := uint64(0)
		add := func(service string, group uint64, value int64) {
			text := func(s string) []profile.Attribute {
				return []profile.Attribute{{Key: "service.name", Value: profile.String(s)}}
			}
			r := profile.Resource{Attributes: text(service), Host: group != 0 || service == "host", Group: group}
			if group != 0 {
				r.Rest = text("host")
			}
			res := group + 1000
			if !r.Host {
				res = 1
			}
			a.SetResource(res, r)
			key++
			require.Equal(t, profile.Added, a.Insert(res, key, profile.Sample{Stack: names("f")}, []int64{value}, start+1))
		}
		window := func(n uint64) (map[string]int64, map[string]bool) {
			services, owners := map[string]int64{}, map[string]bool{}
			from := start + n*10_000_000_000
			f := a.Flush(from, from+10_000_000_000, profile.Limits{})
			for i, req := range decode(t, f) {
				for _, rp := range req.ResourceProfiles {
					name := rp.Resource.Attributes[0].Value.GetStringValue()
					require.NotContains(t, services, name, "one resource each")
					for _, s := range rp.ScopeProfiles[0].Profiles[0].Samples {
						services[name] += int64(len(s.TimestampsUnixNano))
						for _, v := range s.Values {
							services[name] += v
						}
					}
				}
				owners[fmt.Sprint(f.Messages[i].Resource == profile.HostOwner)] = true
			}
			require.Zero(t, f.Vanished)
			return services, owners
		}
		add("db", 10, 70)
		add("sed", 11, 3)
		add("cc1", 12, 40)
		add("make", 13, 2)
		add("cart", 0, 5) // in a container
		add("host", 0, 1)
		services, _ := window(0)
		require.Equal(t, map[string]int64{"db": 70, "cc1": 40, "host": 6, "cart": 5}, services)

		// The database is nearly idle, and keeps its name.
		add("db", 10, 1)
		add("cc1", 12, 30)
		add("ld", 14, 90)
		services, owners := window(1)
		require.Equal(t, map[string]int64{"db": 1, "cc1": 30, "host": 90}, services)
		require.Equal(t, map[string]bool{"true": true}, owners, "one owner")

		// The build has finished, so a new service gets a place. When the build runs again, all three keep their names.
		add("db", 10, 1)
		add("web", 15, 9)
		add("sed", 11, 2)
		services, _ = window(2)
		require.Equal(t, map[string]int64{"db": 1, "web": 9, "host": 2}, services)
		add("db", 10, 1)
		add("web", 15, 1)
		add("cc1", 12, 40)
		add("sed", 11, 50)
		services, _ = window(3)
		require.Equal(t, map[string]int64{"db": 1, "web": 1, "cc1": 40, "host": 50}, services)

		// At most eight services have names within an hour, however they come and go.
		for i := range uint64(10) {
			add(fmt.Sprint("new-", i), 20+i, 5)
			services, _ = window(4 + i)
			require.Len(t, services, 1)
			require.Equal(t, i >= 5, services["host"] == 5, "%d: %v", i, services)
		}

		// The compiler and others have not been seen for an hour.
		add("db", 10, 1)
		window(359)
		add("db", 10, 1)
		add("ld", 14, 90)
		add("cc1", 12, 40)
		services, _ = window(374)
		require.Equal(t, map[string]int64{"db": 1, "ld": 90, "host": 40}, services)
	}
}

// TestHostServicesKeepEvents checks that merged services keep all their events.
func TestHostServicesKeepEvents(t *testing.T) {
	cfg := config()
	cfg.HostServices, cfg.Shape = 1, profile.ShapeEvents
	a := profile.New(cfg)
	for group := range uint64(3) {
		host := []profile.Attribute{{Key: "service.name", Value: profile.String("host")}}
		own := []profile.Attribute{{Key: "service.name", Value: profile.String(fmt.Sprint("service-", group))}}
		a.SetResource(group+1, profile.Resource{Attributes: own, Rest: host, Host: true, Group: group + 1})
		for i := range uint64(3) {
			value := []int64{int64(100 - 10*group + i)}
			if a.Add(group+1, value, start+10*group+i) != profile.Added {
				require.Equal(t, profile.Added, a.Insert(group+1, group+1, profile.Sample{Stack: names("f")}, value, start+10*group+i))
			}
		}
	}
	for _, rp := range decode(t, a.Flush(start, end, profile.Limits{}))[0].ResourceProfiles {
		s := rp.ScopeProfiles[0].Profiles[0].Samples[0]
		if rp.Resource.Attributes[0].Value.GetStringValue() == "host" {
			require.ElementsMatch(t, []int64{90, 91, 92, 80, 81, 82}, s.Values)
			require.ElementsMatch(t, []uint64{start + 10, start + 11, start + 12, start + 20, start + 21, start + 22}, s.TimestampsUnixNano)
		} else {
			require.Equal(t, []int64{100, 101, 102}, s.Values)
		}
	}
}
