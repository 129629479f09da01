package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge/luascripts"
)

// redisDoctor looks at Redis, and at the queue in it.
type redisDoctor struct {
	*report
	queue *report
	s     *Settings
	limit time.Duration
}

// step runs one check within the limit.
func (d *redisDoctor) step(ctx context.Context, check func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	check(ctx)
}

func (d *redisDoctor) run(ctx context.Context) {
	client, err := d.s.connectRedis()
	if err != nil {
		d.problem("settings", err.Error(), "correct BRIDGE_REDIS_URL")
		return
	}
	defer func() { _ = client.Close() }()
	if d.s.Redis.Mode == luascripts.ModeSentinel {
		d.step(ctx, d.sentinels)
	}
	reached := false
	d.step(ctx, func(ctx context.Context) { reached = d.reach(ctx, client) })
	if !reached {
		d.queue.note("queue", "not looked at, since Redis cannot be", "")
		return
	}
	cluster, isCluster := client.(*redis.ClusterClient)
	if isCluster {
		d.step(ctx, func(ctx context.Context) { d.slots(ctx, cluster) })
		d.step(ctx, func(ctx context.Context) {
			var mu sync.Mutex
			err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
				f, err := readNodeFacts(ctx, node)
				mu.Lock()
				defer mu.Unlock()
				d.node(node.Options().Addr, f, err)
				return nil
			})
			if err != nil {
				d.problem("nodes", "the masters cannot be asked: "+shortCause(err), "see that each of them can be reached from here")
			}
		})
	} else {
		d.step(ctx, func(ctx context.Context) {
			f, err := readNodeFacts(ctx, client)
			d.node("", f, err)
		})
	}
	q, err := luascripts.Inspect(client, d.s.queueConfig())
	if err != nil {
		d.problem("queue", err.Error(), "correct the setting that it names")
		return
	}
	d.step(ctx, func(ctx context.Context) { d.permissions(ctx, q) })
	d.step(ctx, func(ctx context.Context) { d.scripts(ctx, q) })
	shards := -1
	d.step(ctx, func(ctx context.Context) { shards = d.shards(ctx, client) })
	if shards > 0 && shards != int(d.s.Shards) {
		// What it would count is not the queue.
		d.queue.note("queue", "not looked at, since the number of shards is another", "")
		return
	}
	d.step(ctx, func(ctx context.Context) { d.lanes(ctx, q) })
}

// reach reports whether Redis answers.
func (d *redisDoctor) reach(ctx context.Context, client redis.UniversalClient) bool {
	began := time.Now()
	err := client.Ping(ctx).Err()
	what := fmt.Sprintf("%s (mode %s)", d.s.Redis.URL, d.s.Redis.Mode)
	switch {
	case err == nil:
		d.ok("reachable", "%s answers in %v", what, time.Since(began).Round(100*time.Microsecond))
		return true
	case redis.IsPermissionError(err):
		// It is there, and knows the user; what it may do is told below.
		d.ok("reachable", "%s answers, and does not let its user PING", what)
		return true
	case redis.IsAuthError(err), redis.HasErrorPrefix(err, "WRONGPASS"), redis.HasErrorPrefix(err, "NOAUTH"):
		d.problem("reachable", what+" refuses the user or the password: "+err.Error(), "set user and password in BRIDGE_REDIS_URL (or the file of BRIDGE_REDIS_URL_FILE)")
	case redis.HasErrorPrefix(err, "LOADING"):
		d.problem("reachable", what+" is loading its data from disk: nothing is taken in or delivered until it has", "wait; redis-cli INFO persistence says how long (loading_eta_seconds)")
	case redis.HasErrorPrefix(err, "MASTERDOWN"):
		d.problem("reachable", what+" is a replica whose master is down", "set BRIDGE_REDIS_URL to a master, or BRIDGE_REDIS_MODE=sentinel")
	case isRedisReply(err):
		// It is there; what is wrong with it is told below.
		d.ok("reachable", "%s answers in %v", what, time.Since(began).Round(100*time.Microsecond))
		return true
	default:
		d.problem("reachable", what+" does not answer: "+shortCause(err)+": nothing is taken in or delivered", "start Redis, or correct BRIDGE_REDIS_URL and BRIDGE_REDIS_MODE; redis-cli -u <url> PING tries it")
	}
	return false
}

// isRedisReply reports whether an error was said by Redis itself.
func isRedisReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// nodeFacts are what one server says of itself.
type nodeFacts struct {
	info map[string]string
	// config is empty where the server does not tell.
	config map[string]string
	skew   time.Duration
	half   time.Duration // half of the way there and back
	// timeErr is why skew is not known.
	timeErr error
}

func readNodeFacts(ctx context.Context, node redis.UniversalClient) (f nodeFacts, err error) {
	f.config = map[string]string{}
	began := time.Now()
	if now, err := node.Time(ctx).Result(); err != nil {
		f.timeErr = err
	} else {
		f.half = time.Since(began) / 2
		f.skew = now.Sub(began.Add(f.half))
	}
	for _, name := range []string{"save", "appendfsync", "client-output-buffer-limit", "proto-max-bulk-len", "min-replicas-to-write", "stop-writes-on-bgsave-error"} {
		// Hosted servers and narrow users may not tell, which is no finding.
		if values, err := node.ConfigGet(ctx, name).Result(); err == nil {
			for k, v := range values {
				f.config[k] = v
			}
		}
	}
	text, err := node.Info(ctx).Result()
	f.info = infoFields(text)
	return f, err
}

func (f nodeFacts) number(field string) int64 {
	n, _ := strconv.ParseInt(f.info[field], 10, 64)
	return n
}

// node reports what one server says of itself; name is empty where there is one only.
func (d *redisDoctor) node(name string, f nodeFacts, err error) {
	at := ""
	cli := "redis-cli"
	if name != "" {
		at = name + ": "
		if host, port, e := net.SplitHostPort(name); e == nil {
			cli = "redis-cli -h " + host + " -p " + port
		}
	}
	if f.timeErr == nil {
		d.checkClock(strings.TrimSpace(at+"Redis"), f.skew, f.half, time.Duration(d.s.ClockTolerance))
	} else {
		d.problem("clock", at+"TIME is refused: "+shortCause(f.timeErr), "allow it: ACL SETUSER <user> +time")
	}
	if err != nil {
		d.warning("info", at+"it does not say how it is set: "+shortCause(err)+": whether it evicts and persists is not known", "allow it: ACL SETUSER <user> +info, or look by hand: redis-cli INFO")
		return
	}
	set := func(what string) string { return cli + " CONFIG SET " + what + ", and in redis.conf" }
	d.version(at, f)
	d.role(at, f)
	d.eviction(at, f, set)
	d.persistence(at, f, set)
	d.memory(at, f, set)
	d.clients(at, f, set)
	d.replicas(at, f, set)
}

func (d *redisDoctor) version(at string, f nodeFacts) {
	version, product := f.info["redis_version"], "Redis"
	if v := f.info["valkey_version"]; v != "" {
		product = "Valkey"
		d.ok("version", "%s%s %s", at, product, v)
		return
	}
	if version == "" {
		d.note("version", at+"it does not say which it is: an imitation of Redis, such as bridge dev has one, keeps nothing", "use Redis or Valkey where messages matter")
		return
	}
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < 7 {
		d.problem("version", at+product+" "+version+" is older than 7.0, the oldest that is supported", "upgrade to Redis 7 or Valkey 7.2, or later")
		return
	}
	d.ok("version", "%s%s %s", at, product, version)
}

func (d *redisDoctor) role(at string, f nodeFacts) {
	if f.info["role"] == "slave" {
		d.problem("role", fmt.Sprintf("%sit is a replica of %s, which takes no writes: nothing is taken in or delivered", at, net.JoinHostPort(f.info["master_host"], f.info["master_port"])),
			"set BRIDGE_REDIS_URL to the master, or BRIDGE_REDIS_MODE=sentinel so that it is found")
	}
	if f.info["loading"] == "1" {
		d.problem("loading", at+"it is loading its data from disk", "wait; INFO persistence says how long (loading_eta_seconds)")
	}
}

func (d *redisDoctor) eviction(at string, f nodeFacts, set func(string) string) {
	policy := f.info["maxmemory_policy"]
	do := set("maxmemory-policy noeviction")
	switch {
	case policy == "":
		d.warning("eviction", at+"it does not say its maxmemory-policy", "make sure that it is noeviction")
	case policy == "noeviction":
		d.ok("eviction", "%smaxmemory-policy is noeviction", at)
	case strings.HasPrefix(policy, "volatile-"):
		d.warning("eviction", at+"maxmemory-policy is "+policy+": messages have no expiry and stay, but another policy is one letter away", do)
	case f.number("maxmemory") == 0:
		d.warning("eviction", at+"maxmemory-policy is "+policy+": with a maxmemory, messages would be evicted; there is none now", do)
	default:
		d.problem("eviction", at+"maxmemory-policy is "+policy+": messages are evicted, which loses them, when memory runs out", do)
	}
}

func (d *redisDoctor) persistence(at string, f nodeFacts, set func(string) string) {
	const check = "persistence"
	save, told := f.config["save"]
	aof := f.info["aof_enabled"] == "1"
	switch {
	case aof && f.config["appendfsync"] == "no":
		d.warning(check, at+"appendonly is on with appendfsync no: a crash of the host loses what the system had not written yet, often 30 s", set("appendfsync everysec"))
	case aof && f.config["appendfsync"] == "always":
		d.ok(check, "%sappendonly is on, appendfsync is always", at)
	case aof:
		d.ok(check, "%sappendonly is on: a crash of its host loses a second at most", at)
	case told && save == "":
		d.problem(check, at+"it keeps nothing on disk: a restart loses every message", set("appendonly yes"))
	case told:
		d.warning(check, at+"appendonly is off: a crash loses what came since the last snapshot (save "+save+")", set("appendonly yes"))
	default:
		d.warning(check, at+"appendonly is off, and it does not say whether it makes snapshots: a crash may lose messages", set("appendonly yes"))
	}
	for _, w := range []struct{ field, what, do string }{
		{"aof_last_write_status", "the last write of the append-only file failed: Redis refuses all writes until one succeeds", "look at the disk and at Redis's log: df -h, redis-cli INFO persistence"},
		{"aof_last_bgrewrite_status", "the last rewrite of the append-only file failed: it grows without end", "look at the disk, then redis-cli BGREWRITEAOF"},
		{"rdb_last_bgsave_status", "the last snapshot failed", "look at the disk, then redis-cli BGSAVE"},
	} {
		if f.info[w.field] != "err" {
			continue
		}
		// A failed snapshot stops writes only while snapshots are wanted.
		if w.field == "rdb_last_bgsave_status" && save != "" && f.config["stop-writes-on-bgsave-error"] == "yes" {
			d.problem("disk", at+w.what+": Redis refuses all writes until one succeeds (stop-writes-on-bgsave-error)", w.do)
		} else if w.field == "aof_last_write_status" {
			d.problem("disk", at+w.what, w.do)
		} else {
			d.warning("disk", at+w.what, w.do)
		}
	}
}

func (d *redisDoctor) memory(at string, f nodeFacts, set func(string) string) {
	const check = "memory"
	used, most, system := f.number("used_memory"), f.number("maxmemory"), f.number("total_system_memory")
	switch {
	case most == 0 && system > 0 && used > system/10*8:
		d.problem(check, fmt.Sprintf("%s%s are used of the host's %s, and there is no maxmemory: the system may kill Redis", at, byteSize(used), byteSize(system)), "give it more memory, and "+set("maxmemory <bytes>"))
	case most == 0:
		d.note(check, fmt.Sprintf("%s%s are used, and there is no maxmemory: ingest is never held back, until the system kills Redis", at, byteSize(used)), set("maxmemory <about 65% of the host's memory>"))
	case used > most/10*9:
		d.problem(check, fmt.Sprintf("%s%s of %s maxmemory are used, over 90%%: ingest takes nothing in until there is room, and goes on by itself then", at, byteSize(used), byteSize(most)),
			"raise maxmemory ("+set("maxmemory <bytes>")+"), or purge dead letters: bridge dead purge --reason rejected")
	case used > most/4*3:
		d.warning(check, fmt.Sprintf("%s%s of %s maxmemory are used; above 90%% ingest takes nothing in", at, byteSize(used), byteSize(most)), "raise maxmemory, or purge dead letters: bridge dead purge")
	default:
		d.ok(check, "%s%s of %s maxmemory are used", at, byteSize(used), byteSize(most))
	}
	if most > 0 && system > 0 && most > system {
		d.warning(check, fmt.Sprintf("%smaxmemory is %s and the host has %s: the system kills Redis before it says that it is full", at, byteSize(most), byteSize(system)), set("maxmemory <about 65% of the host's memory>"))
	}
}

// clients reports limits on connections and on what they may hold.
func (d *redisDoctor) clients(at string, f nodeFacts, set func(string) string) {
	if n, most := f.number("connected_clients"), f.number("maxclients"); most > 0 && n > most/10*8 {
		d.warning("clients", fmt.Sprintf("%s%d of %d connections are in use: the next ones are refused", at, n, most), set("maxclients <more>"))
	}
	// A claim's reply is the largest: records up to 8 MiB together, and one of each
	// shard may pass that.
	need := int64(luascripts.DefaultConfig().MaxClaimBytes) + int64(d.s.Shards)*int64(d.s.MaxPayload)
	words := strings.Fields(f.config["client-output-buffer-limit"])
	for i := 0; i+3 < len(words); i += 4 {
		hard, _ := strconv.ParseInt(words[i+1], 10, 64)
		if words[i] == "normal" && hard > 0 && hard < need {
			d.warning("buffers", fmt.Sprintf("%sclient-output-buffer-limit of normal clients is %s: a claim of many large messages may need %s, and is cut off", at, byteSize(hard), byteSize(need)),
				set(`client-output-buffer-limit "normal 0 0 0"`))
		}
	}
	if bulk, _ := strconv.ParseInt(f.config["proto-max-bulk-len"], 10, 64); bulk > 0 && bulk < int64(d.s.MaxPayload)+64<<10 {
		d.problem("buffers", fmt.Sprintf("%sproto-max-bulk-len is %s: payloads up to BRIDGE_MAX_PAYLOAD (%s) are refused", at, byteSize(bulk), d.s.MaxPayload),
			set("proto-max-bulk-len 512mb")+", or lower BRIDGE_MAX_PAYLOAD")
	}
}

// replicas reports whether as many follow as writes wait for.
func (d *redisDoctor) replicas(at string, f nodeFacts, set func(string) string) {
	if f.info["role"] != "master" {
		return
	}
	online := 0
	for field, value := range f.info {
		if strings.HasPrefix(field, "slave") && strings.Contains(value, "state=online") {
			online++
		}
	}
	wait := int(d.s.Redis.WaitReplicas)
	least, _ := strconv.Atoi(f.config["min-replicas-to-write"])
	switch {
	case least > online:
		d.problem("replicas", fmt.Sprintf("%s%d replicas follow, and min-replicas-to-write is %d: Redis refuses all writes", at, online, least), "start the replicas, or "+set(fmt.Sprintf("min-replicas-to-write %d", online)))
	case online < wait:
		d.problem("replicas", fmt.Sprintf("%s%d replicas follow, and BRIDGE_REDIS_WAIT_REPLICAS is %d: nothing is taken in until as many do", at, online, wait), "start the replicas, or lower BRIDGE_REDIS_WAIT_REPLICAS")
	case wait == 0 && online > 0:
		d.note("replicas", fmt.Sprintf("%s%d replicas follow, and writes wait for none: a fail-over loses what they do not have yet", at, online), "set BRIDGE_REDIS_WAIT_REPLICAS=1 if that matters")
	case wait > 0:
		d.ok("replicas", "%s%d follow, writes wait for %d", at, online, wait)
	case d.s.Redis.Mode != luascripts.ModeSingle:
		d.warning("replicas", at+"no replica follows: nothing takes over when it dies", "start a replica")
	}
}

// slots reports which of a cluster's slots are served.
func (d *redisDoctor) slots(ctx context.Context, cluster *redis.ClusterClient) {
	info, err := cluster.ClusterInfo(ctx).Result()
	if err != nil {
		d.problem("cluster", "it does not say its state: "+shortCause(err), "allow it: ACL SETUSER <user> +cluster|info +cluster|slots, or correct BRIDGE_REDIS_MODE")
		return
	}
	f := infoFields(info)
	if f["cluster_state"] == "ok" && f["cluster_slots_ok"] == "16384" {
		d.ok("cluster", "its state is ok: all 16384 slots are served, by %s masters", f["cluster_size"])
		return
	}
	d.problem("cluster", fmt.Sprintf("its state is %s, and %s of 16384 slots are served: shards in the others can neither be written nor read", f["cluster_state"], f["cluster_slots_ok"]),
		"redis-cli --cluster check <host:port>, then start the missing nodes or redis-cli --cluster fix <host:port>")
}

// sentinels asks each of them for itself.
func (d *redisDoctor) sentinels(ctx context.Context) {
	o, err := redis.ParseFailoverURL(string(d.s.Redis.URL))
	if err != nil {
		return // it was said
	}
	answering := 0
	for _, addr := range o.SentinelAddrs {
		options := &redis.Options{
			Addr: addr, Username: o.SentinelUsername, Password: o.SentinelPassword,
			DialTimeout: d.limit / 4, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		}
		if o.TLSConfig != nil {
			options.Dialer = d.s.redisLink().DialTLS
		}
		c := redis.NewSentinelClient(options)
		text, err := c.CkQuorum(ctx, o.MasterName).Result()
		_ = c.Close()
		switch {
		case err == nil:
			answering++
			d.ok("sentinel", "%s: %s", addr, text)
		case strings.Contains(err.Error(), "No such master"):
			answering++
			d.problem("sentinel", addr+" does not know a master called "+o.MasterName, "correct master_name in BRIDGE_REDIS_URL; redis-cli -p <port> SENTINEL MASTERS lists them")
		case redis.HasErrorPrefix(err, "NOQUORUM"), redis.HasErrorPrefix(err, "NOGOODSLAVE"):
			answering++
			d.problem("sentinel", addr+": "+err.Error()+": a master that dies is not replaced", "start the sentinels that are missing")
		default:
			d.warning("sentinel", addr+" does not answer: "+shortCause(err), "start it, or correct BRIDGE_REDIS_URL")
		}
	}
	if len(o.SentinelAddrs) < 3 {
		d.note("sentinel", fmt.Sprintf("BRIDGE_REDIS_URL names %s: the bridge finds no master while it is away", plural(len(o.SentinelAddrs), "sentinel")), "add the others: &addr=host:port")
	}
	if answering == 0 {
		d.problem("sentinel", "none answers: the master cannot be found", "start the sentinels, or correct BRIDGE_REDIS_URL")
	}
}

// permissions reports what the user may not do of all that the queue needs.
func (d *redisDoctor) permissions(ctx context.Context, q *luascripts.Queue) {
	const check = "permissions"
	denied, err := q.Denied(ctx)
	switch {
	case redis.IsPermissionError(err):
		p := q.Permissions()
		d.problem(check, "its user may not run scripts, or not with the keys of the queue: "+err.Error(), "ACL SETUSER <user> "+aclRules(p.Keys, p.Channels, p.Commands))
	case err != nil && strings.Contains(err.Error(), "NOACL"):
		d.note(check, "this server does not tell what its user may do", "")
	case err != nil:
		d.warning(check, "they cannot be asked for: "+shortCause(err), "compare them by hand: ACL GETUSER <user>")
	case len(denied) == 0:
		d.ok(check, "its user may do all that the queue does")
	default:
		var commands, keys []string
		for _, what := range denied {
			command, key, _ := strings.Cut(what, " ")
			if !slices.Contains(commands, command) {
				commands = append(commands, command)
			}
			if key != "" && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		p := q.Permissions()
		d.problem(check, fmt.Sprintf("its user may not do %s, on %s: messages are not taken in, or not delivered", some(commands), some(keys)),
			"ACL SETUSER <user> "+aclRules(p.Keys, p.Channels, commands))
	}
}

// aclRules are permissions as ACL SETUSER takes them.
func aclRules(keys, channels, commands []string) string {
	var rules []string
	for _, k := range keys {
		rules = append(rules, "~"+k)
	}
	for _, c := range channels {
		rules = append(rules, "&"+c)
	}
	for _, c := range commands {
		rules = append(rules, "+"+c)
	}
	return strings.Join(rules, " ")
}

// some names the first of a list.
func some(all []string) string {
	const most = 4
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

func (d *redisDoctor) scripts(ctx context.Context, q *luascripts.Queue) {
	const check = "scripts"
	switch err := q.Probe(ctx); {
	case err == nil:
		d.ok(check, "every shard runs a script that may write")
	case redis.IsPermissionError(err):
		// The permissions tell of it.
	default:
		if cause := errors.Unwrap(err); cause != nil {
			err = cause
		}
		do := "look at Redis's log"
		for prefix, advice := range map[string]string{
			"READONLY":    "set BRIDGE_REDIS_URL to a master",
			"MISCONF":     "look at the disk and at redis-cli INFO persistence",
			"NOREPLICAS":  "start the replicas that min-replicas-to-write asks for",
			"BUSY":        "a script of somebody else runs for long: redis-cli SCRIPT KILL ends it",
			"CLUSTERDOWN": "redis-cli --cluster check <host:port>",
			"OOM":         "raise maxmemory",
		} {
			if redis.HasErrorPrefix(err, prefix) {
				do = advice
			}
		}
		d.problem(check, "it runs no script that may write: "+shortCause(err)+": nothing is taken in or delivered", do)
	}
}

// shards compares the number in Redis with the setting, and returns it: 0 if none
// is there, negative if it cannot be read.
func (d *redisDoctor) shards(ctx context.Context, client redis.UniversalClient) int {
	const check = "shards"
	n, err := luascripts.ShardsInRedis(ctx, client, string(d.s.Namespace))
	switch {
	case err != nil:
		d.problem(check, "the number cannot be read: "+shortCause(err), "see the findings above")
		return -1
	case n == 0:
		d.note(check, fmt.Sprintf("no bridge has used the namespace %s on this Redis yet", d.s.Namespace), "")
	case n != int(d.s.Shards):
		d.problem(check, fmt.Sprintf("Redis knows %d, and BRIDGE_SHARDS is %d: nothing starts", n, d.s.Shards), fmt.Sprintf("set BRIDGE_SHARDS=%d, or another BRIDGE_NAMESPACE", n))
	default:
		d.ok(check, "%d, as Redis knows", n)
	}
	return n
}
