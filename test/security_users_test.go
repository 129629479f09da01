package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"delaybridge/test/servers"
)

// fromSecurityDoc returns the block of docs/security.md that follows a marker:
// what its readers copy is what is tested.
func fromSecurityDoc(t *testing.T, marker string) string {
	t.Helper()
	doc, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "<!-- "+marker+" -->\n```")
	_, rest, ok2 := strings.Cut(rest, "\n")
	block, _, ok3 := strings.Cut(rest, "```")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("docs/security.md has no block %q", marker)
	}
	return block
}

// TestRedisUserWithLeastPermissions runs all that there is with a user who has
// only what the documentation gives.
func TestRedisUserWithLeastPermissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := context.Background()
	root := w.redis.Client(t)
	rules := strings.Fields(strings.ReplaceAll(fromSecurityDoc(t, "redis acl"), "\\\n", " "))
	if rules[0] != "ACL" || rules[1] != "SETUSER" {
		t.Fatalf("rules %q", rules)
	}
	var args []any
	for _, r := range rules {
		r = strings.Trim(r, `'`)
		if r == ">PASSWORD" {
			r = ">secret"
		}
		args = append(args, r)
	}
	if err := root.Do(ctx, args...).Err(); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	if err := root.Do(ctx, "ACL", "SETUSER", "default", "off").Err(); err != nil {
		t.Fatal(err)
	}
	env := w.env.With(Env{"REDIS_URL": "unix://bridge:secret@" + strings.TrimPrefix(w.redis.URL, "unix://"), "RETRY_BASE": "10ms", "MAX_ATTEMPTS": "2", "LEASE": "1s", "PUBLISH_TIMEOUT": "500ms"})
	p := Serve(t, env)
	w.awaitStream(t)
	w.passes(t, "one")
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 5")
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://nobody.a", "Bridge-Delay: 0s", "Bridge-Id: failing")
	run := func(code int, args ...string) {
		t.Helper()
		if r := Run(t, env, "", args...); r.Code != code || strings.Contains(r.Stderr, "NOPERM") {
			t.Errorf("bridge %q: %+v", args, r)
		}
	}
	run(0, "schedule", "--target", "nats://orders.b", "--delay", "1h", "--id", "far")
	run(0, "get", "far")
	run(0, "list")
	run(0, "stats")
	run(0, "cancel", "far")
	if !servers.Eventually(func() bool { r := Run(t, env, "", "dead", "show", "failing"); return r.Code == 0 }) {
		t.Fatal("no dead letter")
	}
	run(0, "dead", "list")
	run(0, "dead", "replay", "failing")
	run(0, "dead", "purge", "--reason", "rejected", "--yes")
	if r := Run(t, env, "", "doctor"); strings.Contains(r.Stdout+r.Stderr, "may not") || strings.Contains(r.Stdout+r.Stderr, "NOPERM") {
		t.Errorf("doctor: %+v", r)
	}
	p.Signal(15)
	if code := p.Exit(t); code != 0 || strings.Contains(p.Output(), "NOPERM") {
		t.Errorf("code %d:\n%s", code, p.Output())
	}
	// And nothing else than that: neither other keys nor the server itself.
	for _, args := range [][]any{{"GET", "other"}, {"KEYS", "*"}, {"FLUSHALL"}, {"CONFIG", "SET", "maxmemory", "1"}, {"ACL", "LIST"}} {
		c := w.redis.Client(t)
		conn := c.Conn()
		if err := conn.AuthACL(ctx, "bridge", "secret").Err(); err != nil {
			t.Fatal(err)
		}
		if err := conn.Do(ctx, args...).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%v: %v", args, err)
		}
		_ = conn.Close()
	}
}

// TestRedisUserOfACluster is the same for a cluster, with what the documentation adds
// for it, for waiting for replicas, and for being told of snapshots.
func TestRedisUserOfACluster(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, more, _ := strings.Cut(string(doc), "is `BRIDGE_NAMESPACE`. Add\n")
	more, _, _ = strings.Cut(more, "`bridge doctor`")
	added := regexp.MustCompile(`\+[a-z|]+`).FindAllString(more, -1)
	if len(added) != 6 {
		t.Fatalf("the documentation adds %q", added)
	}
	rules := strings.Fields(strings.ReplaceAll(fromSecurityDoc(t, "redis acl"), "\\\n", " "))
	var args []any
	for _, r := range append(rules, added...) {
		args = append(args, strings.Replace(strings.Trim(r, `'`), ">PASSWORD", ">secret", 1))
	}
	c := servers.NewRedisCluster(t)
	for _, node := range append(c.Masters, c.Replicas...) {
		if err := node.Client(t).Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
	}
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	stream(t, js, "ORDERS", "orders.>")
	table := NewTimetable(t, n.Connect(t), "orders.>")
	env := Env{
		"REDIS_URL": strings.Replace(c.URL, "redis://", "redis://bridge:secret@", 1), "REDIS_MODE": "cluster",
		"REDIS_WAIT_REPLICAS": "1", "SHARDS": "24", "NATS_URL": n.URL, "MAX_ATTEMPTS": "2", "RETRY_BASE": "10ms",
	}
	p := Serve(t, env)
	p.Await(t, `"slots_ok":"16384"`)
	const count = 50
	for i := range count {
		publish(t, js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", fmt.Sprint("Bridge-Id: m", i))
		publish(t, js, "bridge.schedule", "x", "Bridge-Target: no target")
	}
	publish(t, js, "bridge.schedule", "x", "Bridge-Target: nats://nobody.a", "Bridge-Delay: 0s", "Bridge-Id: failing")
	if !servers.Eventually(func() bool { return len(table.Arrivals()) >= count }) {
		t.Errorf("%d arrived:\n%s", len(table.Arrivals()), p.Output())
	}
	if !servers.Eventually(func() bool { return Run(t, env, "", "dead", "show", "failing").Code == 0 }) {
		t.Error("no dead letter")
	}
	for _, args := range [][]string{
		{"schedule", "--target", "nats://orders.b", "--delay", "1h", "--id", "far"}, {"get", "far"}, {"list"}, {"stats"}, {"cancel", "far"},
		{"dead", "list"}, {"dead", "replay", "failing"}, {"dead", "purge", "--reason", "rejected", "--yes"},
	} {
		if r := Run(t, env, "", args...); r.Code != 0 || strings.Contains(r.Stderr, "NOPERM") {
			t.Errorf("bridge %q: %+v", args, r)
		}
	}
	if r := Run(t, env, "", "doctor"); strings.Contains(r.Stdout+r.Stderr, "may not") || strings.Contains(r.Stdout+r.Stderr, "NOPERM") {
		t.Errorf("doctor: %+v", r)
	}
	p.Signal(15)
	if code := p.Exit(t); code != 0 || strings.Contains(p.Output(), "NOPERM") || strings.Contains(p.Output(), "no permissions") {
		t.Errorf("code %d:\n%s", code, p.Output())
	}
}

var quotedSubject = regexp.MustCompile(`"([^"]+)"`)

// TestNATSUserWithLeastPermissions is the same for a user of NATS.
func TestNATSUserWithLeastPermissions(t *testing.T) {
	t.Parallel()
	block := fromSecurityDoc(t, "nats permissions")
	lists := func(word string) (subjects []string) {
		_, rest, _ := strings.Cut(block, word+": [")
		list, _, _ := strings.Cut(rest, "]")
		for _, m := range quotedSubject.FindAllStringSubmatch(list, -1) {
			subjects = append(subjects, m[1])
		}
		return subjects
	}
	publishes, subscribes := lists("publish"), lists("subscribe")
	if len(publishes) < 5 || len(subscribes) != 1 {
		t.Fatalf("publish %q, subscribe %q", publishes, subscribes)
	}
	w := &world{redis: servers.NewRedis(t), nats: servers.NewNATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "a"},
			{Username: "bridge", Password: "b", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: publishes}, Subscribe: &server.SubjectPermission{Allow: subscribes},
			}},
		}
	})}
	admin := w.nats.Connect(t, nats.UserInfo("admin", "a"))
	js, err := jetstream.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	w.js, w.table = js, NewTimetable(t, admin, "orders.>")
	stream(t, w.js, "ORDERS", "orders.>")
	stream(t, w.js, "SECRETS", "secrets.>")
	w.env = Env{"REDIS_URL": w.redis.URL, "NATS_URL": strings.Replace(w.nats.URL, "//", "//bridge:b@", 1)}
	p := w.serve(t, nil)
	for i := range 3 {
		w.passes(t, fmt.Sprint("message ", i))
	}
	if out := p.Output(); strings.Contains(out, "ermission") {
		t.Errorf("something is missing:\n%s", out)
	}
	// What it may not publish is a dead letter at once.
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://secrets.a", "Bridge-Delay: 0s", "Bridge-Id: elsewhere")
	w.awaitState(t, "elsewhere", "dead")
	own := w.nats.Connect(t, nats.UserInfo("bridge", "b"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	for _, subject := range []string{"$JS.API.STREAM.DELETE.ORDERS", "$JS.API.STREAM.PURGE.ORDERS", "$JS.API.STREAM.MSG.GET.SECRETS", "$JS.API.STREAM.DELETE.BRIDGE_SCHEDULE"} {
		if m, err := own.Request(subject, nil, 200*time.Millisecond); err == nil {
			t.Errorf("%s is answered: %s", subject, m.Data)
		}
	}
}

// TestNATSCredentialsRotate signs in with a .creds file whose user is revoked
// while another one is put in its place.
func TestNATSCredentialsRotate(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	operator, err := nkeys.CreateOperator()
	must(err)
	operatorKey, err := operator.PublicKey()
	must(err)
	oc := jwt.NewOperatorClaims(operatorKey)
	sys, err := nkeys.CreateAccount()
	must(err)
	sysKey, err := sys.PublicKey()
	must(err)
	oc.SystemAccount = sysKey
	operatorJWT, err := oc.Encode(operator)
	must(err)
	operatorClaims, err := jwt.DecodeOperatorClaims(operatorJWT)
	must(err)
	account, err := nkeys.CreateAccount()
	must(err)
	accountKey, err := account.PublicKey()
	must(err)
	claims := jwt.NewAccountClaims(accountKey)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
	resolver := &server.MemAccResolver{}
	store := func() {
		text, err := claims.Encode(operator)
		must(err)
		must(resolver.Store(accountKey, text))
	}
	store()
	sysJWT, err := jwt.NewAccountClaims(sysKey).Encode(operator)
	must(err)
	must(resolver.Store(sysKey, sysJWT))

	newCreds := func() (public, creds string) {
		user, err := nkeys.CreateUser()
		must(err)
		public, err = user.PublicKey()
		must(err)
		text, err := jwt.NewUserClaims(public).Encode(account)
		must(err)
		seed, err := user.Seed()
		must(err)
		formatted, err := jwt.FormatUserConfig(text, seed)
		must(err)
		return public, string(formatted)
	}
	var opts *server.Options
	w := &world{redis: servers.NewRedis(t), nats: servers.NewNATS(t, func(o *server.Options) {
		opts = o
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{operatorClaims}, resolver, sysKey
	})}
	file := filepath.Join(t.TempDir(), "bridge.creds")
	first, creds := newCreds()
	putFile(t, file, creds)
	_, adminCreds := newCreds()
	adminFile := filepath.Join(t.TempDir(), "admin.creds")
	putFile(t, adminFile, adminCreds)
	admin := w.nats.Connect(t, nats.UserCredentials(adminFile))
	if w.js, err = jetstream.New(admin); err != nil {
		t.Fatal(err)
	}
	w.table = NewTimetable(t, admin, "orders.>")
	stream(t, w.js, "ORDERS", "orders.>")
	w.env = Env{"REDIS_URL": w.redis.URL, "NATS_URL": w.nats.URL, "NATS_CREDS": file}
	p := w.serve(t, nil)
	w.passes(t, "one")

	_, creds = newCreds()
	putFile(t, file, creds)
	claims.Revoke(first)
	store()
	w.nats.Stop()
	opts.TrustedKeys = nil // the server has filled it in
	w.nats.Start(t)
	p.Await(t, "reconnected to NATS")
	w.passes(t, "two")
	for _, line := range strings.Split(creds, "\n") {
		if len(line) > 40 && strings.Contains(p.Output(), line) {
			t.Error("credentials are in the log")
		}
	}
}

// TestKafkaUserWithLeastPermissions has a user of Apache Kafka who may do only
// what the documentation says, and whose password changes.
func TestKafkaUserWithLeastPermissions(t *testing.T) {
	t.Parallel()
	if !servers.HaveKafka(t) {
		t.Skip("kfake has no users that may do some things only")
	}
	plainPort, controller, secured := servers.FreePort(t), servers.FreePort(t), servers.FreePort(t)
	k := servers.NewKafka(t, servers.KafkaPort(plainPort),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d,SASL_PLAINTEXT://127.0.0.1:%d", plainPort, controller, secured),
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", controller),
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users=User:ANONYMOUS",
		"sasl.enabled.mechanisms=SCRAM-SHA-512",
		"listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
	)
	addUser(t, k, "bridge", "first password")
	in, out, other, group := k.Topic(t, 2), k.Topic(t, 1), k.Topic(t, 1), servers.TopicName(t)
	names := strings.NewReplacer("bridge.schedule", in, "orders", out)
	for _, line := range strings.Split(strings.TrimSpace(fromSecurityDoc(t, "kafka acls")), "\n") {
		allow(t, k, "bridge", group, names, strings.Fields(line))
	}
	secret := filepath.Join(t.TempDir(), "password")
	putFile(t, secret, "first password\n")
	env := Env{"REDIS_URL": servers.NewRedis(t).URL, "KAFKA_BROKERS": fmt.Sprintf("127.0.0.1:%d", secured), "KAFKA_INGEST_TOPICS": in,
		"KAFKA_INGEST_GROUP": group, "KAFKA_SASL_MECHANISM": "scram-sha-512", "KAFKA_SASL_USERNAME": "bridge", "KAFKA_SASL_PASSWORD_FILE": secret}
	p := Serve(t, env)
	w := &kafkaWorld{kafka: k, in: in, producer: k.Client(t)}
	w.send(t, request("one", "Bridge-Target: kafka://"+out, "Bridge-Delay: 0s"))
	table := w.watch(t, out)
	table.await(t, "one")
	w.send(t, request("elsewhere", "Bridge-Target: kafka://"+other, "Bridge-Delay: 0s"))
	p.Await(t, "Topic Authorization Failed")

	// The old password is worth nothing any more.
	addUser(t, k, "bridge", "second password")
	putFile(t, secret, "second password\n")
	k.Stop()
	k.Start(t)
	w.producer = k.Client(t)
	w.send(t, request("two", "Bridge-Target: kafka://"+out, "Bridge-Delay: 0s"))
	w.watch(t, out).await(t, "two")
	if strings.Contains(p.Output(), "password\"") || strings.Contains(p.Output(), "second password") {
		t.Errorf("a password is in the log:\n%s", p.Output())
	}
}

// allow carries out one line of the documentation, such as
//
//	kafka-acls.sh ... --add --allow-principal User:bridge --operation Read --operation Describe --topic bridge.schedule
func allow(t *testing.T, k *servers.Kafka, user, group string, names *strings.Replacer, words []string) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	operations := map[string]kmsg.ACLOperation{"Read": kmsg.ACLOperationRead, "Write": kmsg.ACLOperationWrite, "Describe": kmsg.ACLOperationDescribe, "DescribeConfigs": kmsg.ACLOperationDescribeConfigs}
	var ops []kmsg.ACLOperation
	var resource kmsg.ACLResourceType
	name := ""
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "--operation":
			op, ok := operations[words[i+1]]
			if !ok {
				t.Fatalf("no operation %s", words[i+1])
			}
			ops = append(ops, op)
		case "--topic":
			resource, name = kmsg.ACLResourceTypeTopic, names.Replace(words[i+1])
		case "--group":
			resource, name = kmsg.ACLResourceTypeGroup, group
		}
	}
	if len(ops) == 0 || name == "" {
		t.Fatalf("cannot read %q", words)
	}
	for _, op := range ops {
		c := kmsg.NewCreateACLsRequestCreation()
		c.ResourceType, c.ResourceName, c.ResourcePatternType = resource, name, kmsg.ACLResourcePatternTypeLiteral
		c.Principal, c.Host, c.Operation, c.PermissionType = "User:"+user, "*", op, kmsg.ACLPermissionTypeAllow
		req.Creations = append(req.Creations, c)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var client *kgo.Client = k.Client(t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Fatalf("%q: %v", words, err)
		}
	}
}
