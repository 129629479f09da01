package servers_test

import (
	"testing"

	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

func TestGroupsOfRedisServersCanBeReached(t *testing.T) {
	for mode, start := range map[string]func() string{
		luascripts.ModeCluster:  func() string { return servers.NewRedisCluster(t).URL },
		luascripts.ModeSentinel: func() string { return servers.NewRedisSentinel(t).URL },
	} {
		t.Run(mode, func(t *testing.T) {
			client, err := luascripts.Connect(start(), mode)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			if _, err := luascripts.Open(t.Context(), client, luascripts.DefaultConfig()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
