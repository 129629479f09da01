package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisCluster is a Redis Cluster of one test.
type RedisCluster struct {
	// URL is what BRIDGE_REDIS_URL takes with BRIDGE_REDIS_MODE=cluster.
	URL string
	// Masters are the nodes that had the slots at the start, Replicas[i] follows Masters[i].
	Masters, Replicas []*Redis
}

// NewRedisCluster starts a cluster of three masters with a replica each, which
// take over from a dead master within some seconds.
func NewRedisCluster(t testing.TB) *RedisCluster {
	t.Helper()
	ctx := context.Background()
	// Not shorter: a master that a busy machine keeps silent for so long is replaced,
	// and what it had claimed is claimed again.
	const nodeTimeout = 5 * time.Second
	node := func() *Redis {
		return NewRedis(t, RedisTCP, "--appendonly", "yes", "--cluster-enabled", "yes",
			"--cluster-port", strconv.Itoa(FreePort(t)), "--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10))
	}
	c := &RedisCluster{}
	for range 3 {
		c.Masters, c.Replicas = append(c.Masters, node()), append(c.Replicas, node())
	}
	all := append(append([]*Redis{}, c.Masters...), c.Replicas...)
	clients := make([]*redis.Client, len(all))
	for i, r := range all {
		clients[i] = r.Client(t)
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("redis cluster: %s: %v", what, err)
		}
	}
	for i := range c.Masters {
		must("slots", clients[i].ClusterAddSlotsRange(ctx, i*16384/3, (i+1)*16384/3-1).Err())
		must("epoch", clients[i].Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
	}
	for i := range all[1:] {
		must("meet", clients[i+1].Do(ctx, "CLUSTER", "MEET", "127.0.0.1", all[0].Port, argAfter(all[0].args, "--cluster-port")).Err())
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		if !Eventually(ok) {
			t.Fatalf("redis cluster: %s in vain", what)
		}
	}
	await("waited for the nodes to know each other", func() bool {
		for _, client := range clients {
			if strings.Count(client.ClusterNodes(ctx).Val(), "connected") < len(all) {
				return false
			}
		}
		return true
	})
	for i := range c.Replicas {
		id, err := clients[i].Do(ctx, "CLUSTER", "MYID").Text()
		must("id", err)
		await("waited for a replica to follow", func() bool {
			return clients[3+i].ClusterReplicate(ctx, id).Err() == nil
		})
	}
	await("waited for the cluster", func() bool {
		for i, client := range clients {
			info := client.ClusterInfo(ctx).Val()
			if !strings.Contains(info, "cluster_state:ok") {
				return false
			}
			// A master counts a replica only once that has answered it.
			if !strings.Contains(client.Info(ctx, "replication").Val(), []string{"state=online", "master_link_status:up"}[i/3]) {
				return false
			}
		}
		return true
	})
	addrs := make([]string, len(all))
	for i, r := range all {
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", r.Port)
	}
	c.URL = "redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")
	return c
}

func argAfter(args []string, name string) string {
	for i, a := range args[:len(args)-1] {
		if a == name {
			return args[i+1]
		}
	}
	return ""
}

// RedisSentinel is a master and a replica watched by three sentinels.
type RedisSentinel struct {
	// URL is what BRIDGE_REDIS_URL takes with BRIDGE_REDIS_MODE=sentinel.
	URL string
	// Master is the first master, Replica what takes over from it.
	Master, Replica *Redis
}

// NewRedisSentinel starts the servers; a dead master is replaced within a few seconds.
func NewRedisSentinel(t testing.TB) *RedisSentinel {
	t.Helper()
	ctx := context.Background()
	s := &RedisSentinel{Master: NewRedis(t, RedisTCP, "--appendonly", "yes"), Replica: NewRedis(t, RedisTCP, "--appendonly", "yes")}
	if err := s.Replica.Client(t).ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(s.Master.Port)).Err(); err != nil {
		t.Fatal(err)
	}
	replica := s.Replica.Client(t)
	if !Eventually(func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	}) {
		t.Fatal("redis sentinel: the replica does not follow")
	}
	var addrs []string
	for range 3 {
		port := FreePort(t)
		dir, err := os.MkdirTemp("", "snt")
		if err != nil {
			t.Fatal(err)
		}
		conf := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor bridge 127.0.0.1 %d 2\n"+
			"sentinel down-after-milliseconds bridge 1000\nsentinel failover-timeout bridge 5000\n", port, dir, s.Master.Port)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("redis-server", conf, "--sentinel")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = os.RemoveAll(dir)
		})
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	for _, addr := range addrs {
		c := redis.NewSentinelClient(&redis.Options{Addr: addr, MaxRetries: -1})
		t.Cleanup(func() { _ = c.Close() })
		if !Eventually(func() bool {
			others, err := c.Sentinels(ctx, "bridge").Result()
			replicas, err2 := c.Replicas(ctx, "bridge").Result()
			return err == nil && err2 == nil && len(others) == 2 && len(replicas) == 1
		}) {
			t.Fatal("redis sentinel: the sentinels do not know each other")
		}
	}
	s.URL = "redis://" + addrs[0] + "/0?master_name=bridge&addr=" + strings.Join(addrs[1:], "&addr=")
	return s
}
