package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"delaybridge/luascripts"
)

// prefix begins the name of every setting.
const prefix = "BRIDGE"

// Settings are all settings of the program. A field's path is its variable's
// name (NATS.Ingest.Stream is BRIDGE_NATS_INGEST_STREAM), its desc tag is its
// documentation, and its value in defaultSettings is its default. No field has
// an envconfig tag: such a field would be read from a variable without the
// prefix too. No field may be called Port or ServiceHost: Kubernetes sets
// BRIDGE_PORT to a URL beside a Service called bridge.
type Settings struct {
	Roles     list  `split_words:"true" desc:"what this process does: ingest, scheduler, or both"`
	Namespace text  `split_words:"true" desc:"first part of every key in Redis; bridges with different ones do not meet"`
	Shards    count `split_words:"true" desc:"parts that the queue is split into; fixed at the first start on a Redis"`

	Redis struct {
		URL          address `split_words:"true" desc:"redis://[user:password@]host:port/db, rediss:// for TLS, unix:///path; sentinel and cluster take further addr=host:port parameters"`
		Mode         text    `split_words:"true" desc:"single, sentinel or cluster"`
		WaitReplicas count   `split_words:"true" desc:"replicas that must have a write before its source is acknowledged"`
		Strict       boolean `split_words:"true" desc:"refuse to start on a Redis that may evict or does not persist, instead of warning"`
		Password     secret  `split_words:"true" desc:"password, in place of one in the URL; a file is read again for each connection"`
		TLS          struct {
			CA                 text    `split_words:"true" desc:"path of the CA certificates to trust instead of the system's, PEM; takes a rediss:// URL"`
			Cert               text    `split_words:"true" desc:"path of the client certificate, PEM"`
			Key                text    `split_words:"true" desc:"path of the client certificate's key, PEM"`
			ServerName         text    `split_words:"true" desc:"name that the server's certificate must have, where it is not the URL's host"`
			InsecureSkipVerify boolean `split_words:"true" desc:"INSECURE: take any server for the right one; for trying things out only"`
		} `split_words:"true"`
	} `split_words:"true"`

	NATS struct {
		URL   address `split_words:"true" desc:"nats://host:port, several with commas between; empty: no NATS"`
		Creds text    `split_words:"true" desc:"path of a .creds file (JWT and NKey seed)"`
		Nkey  secret  `split_words:"true" desc:"NKey seed (SU...) to sign in with"`
		TLS   struct {
			CA                 text    `split_words:"true" desc:"path of the CA certificates to trust instead of the system's, PEM; any TLS setting makes TLS a must"`
			Cert               text    `split_words:"true" desc:"path of the client certificate, PEM"`
			Key                text    `split_words:"true" desc:"path of the client certificate's key, PEM"`
			ServerName         text    `split_words:"true" desc:"name that the server's certificate must have, where it is not the URL's host"`
			InsecureSkipVerify boolean `split_words:"true" desc:"INSECURE: take any server for the right one; for trying things out only"`
		} `split_words:"true"`
		Ingest struct {
			Stream   text    `split_words:"true" desc:"JetStream stream that schedule messages are read from"`
			Subjects list    `split_words:"true" desc:"subjects of that stream, with commas between"`
			Durable  text    `split_words:"true" desc:"durable consumer that all processes share"`
			Create   boolean `split_words:"true" desc:"create the stream where it is missing"`
		} `split_words:"true"`
		API boolean `split_words:"true" desc:"answer requests on bridge.api.> as a NATS micro service: schedule, cancel, get, list, stats, dead letters"`
	} `split_words:"true"`

	Kafka struct {
		Brokers list `split_words:"true" desc:"host:port of some brokers, with commas between; empty: no Kafka"`
		TLS     struct {
			Enable             boolean `split_words:"true" desc:"connect by TLS; it is on too where another TLS setting is set"`
			CA                 text    `split_words:"true" desc:"path of the CA certificates to trust instead of the system's, PEM"`
			Cert               text    `split_words:"true" desc:"path of the client certificate, PEM"`
			Key                text    `split_words:"true" desc:"path of the client certificate's key, PEM"`
			ServerName         text    `split_words:"true" desc:"name that the brokers' certificates must have, where it is not their host"`
			InsecureSkipVerify boolean `split_words:"true" desc:"INSECURE: take any server for the right one; for trying things out only"`
		} `split_words:"true"`
		SASL struct {
			Mechanism text   `split_words:"true" desc:"plain, scram-sha-256, scram-sha-512 or aws-msk-iam; empty: none"`
			Username  text   `split_words:"true" desc:"user to sign in as"`
			Password  secret `split_words:"true" desc:"the user's password"`
		} `split_words:"true"`
		Ingest struct {
			Topics list `split_words:"true" desc:"topics that schedule messages are read from, with commas between"`
			Group  text `split_words:"true" desc:"consumer group that all processes share"`
		} `split_words:"true"`
	} `split_words:"true"`

	Routes         text     `split_words:"true" desc:"defaults for the plain messages of a source: nats://later.> -> nats://orders delay=30s; several with ; between"`
	AllowedTargets list     `split_words:"true" desc:"patterns such as nats://orders.* with commas between; empty: every target but the bridge's own sources"`
	SourceTargets  text     `split_words:"true" desc:"targets that the messages of a source may name: nats://bridge.schedule -> nats://orders.>, kafka://orders.*; several with ; between; sources also api, cli, * (all others); empty: no such limit"`
	MaxDelay       duration `split_words:"true" desc:"longest way ahead that a message may be due; more is rejected"`
	MaxPayload     size     `split_words:"true" desc:"largest payload; more is rejected"`
	MaxHeaders     count    `split_words:"true" desc:"most headers of a message, those that steer included; more is rejected"`
	MaxHeaderBytes size     `split_words:"true" desc:"most bytes of all names and values of a message's headers; more is rejected"`
	DedupWindow    duration `split_words:"true" desc:"how long at least a delivered or cancelled id is remembered, counted from its last redelivery"`
	ExpiresAfter   duration `split_words:"true" desc:"default of Bridge-Expires-After; 0: never"`
	RejectTarget   text     `split_words:"true" desc:"where refused messages go, such as nats://bridge.rejected; empty: they become dead letters"`
	DeadTarget     text     `split_words:"true" desc:"where a copy of every dead letter goes, but for those that cannot be read (corrupt), such as nats://bridge.dead; empty: nowhere"`
	DeadRetention  duration `split_words:"true" desc:"how long dead letters are kept; 0: for ever"`

	Lease          duration `split_words:"true" desc:"how long a claimed message is one process's alone; at least twice the publish timeout, and 1s"`
	Batch          count    `split_words:"true" desc:"most messages in one step of ingest or of the scheduler"`
	MaxInflight    count    `split_words:"true" desc:"most messages of one sink that a process has claimed at a time"`
	PublishTimeout duration `split_words:"true" desc:"whole budget of one publish, the client's own retries included"`
	RetryBase      duration `split_words:"true" desc:"first wait after a failed attempt; it doubles each time"`
	RetryMax       duration `split_words:"true" desc:"longest wait between attempts"`
	MaxAttempts    count    `split_words:"true" desc:"failed attempts after which a message is a dead letter"`
	MaxLostLeases  count    `split_words:"true" desc:"lost leases (crashes) after which a message is a dead letter"`
	MaxPending     count    `split_words:"true" desc:"pending messages above which ingest stops taking in; 0: no limit"`
	IngestRate     count    `split_words:"true" desc:"messages a second that a process takes in of each stream and topic; the others stay there; 0: no limit"`
	PollMax        duration `split_words:"true" desc:"longest sleep of the scheduler between two looks at the queue"`
	ClockTolerance duration `split_words:"true" desc:"how far the clocks of hosts, brokers and Redis may be apart"`

	ShutdownTimeout duration `split_words:"true" desc:"time to finish or hand back what is held after SIGTERM"`

	MetricsAddr     listenAddress `split_words:"true" desc:"host:port to serve /metrics, /healthz and /readyz at; port 0 takes any free one; set but empty: nowhere"`
	ReadyMaxOverdue duration      `split_words:"true" desc:"how long a message whose broker is there may be overdue before /readyz says so"`

	API struct {
		Addr  listenAddress `split_words:"true" desc:"host:port to serve the HTTP API and the console at; port 0 takes any free one; empty: nowhere"`
		Token secret        `split_words:"true" desc:"bearer token that API requests must show, and that commands show with --api; required where the API listens beyond loopback"`
	} `split_words:"true"`

	PprofAddr listenAddress `split_words:"true" desc:"loopback host:port to serve Go profiles of this process at; empty: nowhere"`

	LogLevel  text `split_words:"true" desc:"debug, info, warn or error"`
	LogFormat text `split_words:"true" desc:"json or console"`
}

// defaultSettings returns the settings of a process whose environment is empty.
func defaultSettings() *Settings {
	s := &Settings{
		Roles: list{roleIngest, roleScheduler}, Namespace: "bridge", Shards: 8,

		MaxDelay: days(7), MaxPayload: 1 << 20, MaxHeaders: 256, MaxHeaderBytes: 64 << 10, DedupWindow: duration(10 * time.Minute), DeadRetention: days(30),

		Lease: duration(time.Minute), Batch: 200, MaxInflight: 8000, PublishTimeout: duration(10 * time.Second),
		RetryBase: duration(time.Second), RetryMax: duration(5 * time.Minute), MaxAttempts: 12, MaxLostLeases: 20,
		PollMax: duration(time.Second), ClockTolerance: duration(5 * time.Second),

		ShutdownTimeout: duration(30 * time.Second),
		MetricsAddr:     ":9090", ReadyMaxOverdue: duration(time.Minute),
		LogLevel: "info", LogFormat: "json",
	}
	s.Redis.URL, s.Redis.Mode = "redis://127.0.0.1:6379/0", luascripts.ModeSingle
	s.NATS.Ingest.Stream, s.NATS.Ingest.Subjects = "BRIDGE_SCHEDULE", list{"bridge.schedule"}
	s.NATS.Ingest.Durable, s.NATS.Ingest.Create = "bridge", true
	s.Kafka.Ingest.Topics, s.Kafka.Ingest.Group = list{"bridge.schedule"}, "bridge"
	return s
}

func days(n int) duration { return duration(n) * duration(24*time.Hour) }

// The roles of a process.
const (
	roleIngest    = "ingest"
	roleScheduler = "scheduler"
)

// loadSettings reads the environment and checks everything. The warnings are
// for the log: each is about a variable that nothing reads.
func loadSettings() (s *Settings, warnings []string, err error) {
	s = defaultSettings()
	if err := envconfig.Process(prefix, s); err != nil {
		if pe, ok := errors.AsType[*envconfig.ParseError](err); ok {
			return nil, nil, settingError{pe.KeyName, pe.Value, pe.Err.Error()}
		}
		return nil, nil, err
	}
	table := s.table()
	for _, e := range table {
		if err := e.readFile(); err != nil {
			return nil, nil, err
		}
	}
	if err := s.Validate(); err != nil {
		return nil, nil, err
	}
	return s, append(s.securityWarnings(), unknownVariables(os.Environ(), table)...), nil
}

// settingError is a wrong value of a setting: one line that names the variable,
// the value unless it is a secret's, and what it takes.
type settingError struct{ name, value, takes string }

func (e settingError) Error() string {
	if e.value == "" {
		return e.name + ": " + e.takes
	}
	return fmt.Sprintf("%s=%q: %s", e.name, e.value, e.takes)
}

// setting is one row of the table of settings.
type setting struct {
	Name string
	Doc  string
	// Default and Value are as printed, secrets masked.
	Default, Value string
	// From says where the value comes from: "default", "environment" or "file <path>".
	From string
	// FileName is the variable that names a file to read a secret from; empty
	// for what is no secret.
	FileName string

	field reflect.Value
}

// table lists all settings in the order of the struct.
func (s *Settings) table() []*setting {
	var rows []*setting
	walk(prefix, reflect.ValueOf(s).Elem(), reflect.ValueOf(defaultSettings()).Elem(), func(r *setting) { rows = append(rows, r) })
	return rows
}

func walk(prefix string, v, def reflect.Value, row func(*setting)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := prefix + "_" + snakeCase(f.Name)
		if v.Field(i).Kind() == reflect.Struct {
			walk(name, v.Field(i), def.Field(i), row)
			continue
		}
		r := &setting{
			Name: name, Doc: f.Tag.Get("desc"), From: "default", field: v.Field(i),
			Default: def.Field(i).Interface().(fmt.Stringer).String(),
			Value:   v.Field(i).Interface().(fmt.Stringer).String(),
		}
		value, isSet := os.LookupEnv(name)
		if _, ok := v.Field(i).Interface().(interface{ emptyIsAValue() }); strings.TrimSpace(value) != "" || ok && isSet {
			r.From = "environment"
		}
		if _, ok := v.Field(i).Interface().(interface{ fromFile() }); ok {
			r.FileName = name + "_FILE"
			if path := os.Getenv(r.FileName); path != "" && r.From == "default" {
				r.From = "file " + path
			}
		}
		row(r)
	}
}

// snakeCase turns MaxLostLeases into MAX_LOST_LEASES, URL into URL.
func snakeCase(name string) string {
	var b strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		if i > 0 && upper && name[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// readFile takes a secret from the file that its _FILE variable names.
func (r *setting) readFile() error {
	if r.FileName == "" {
		return nil
	}
	path := os.Getenv(r.FileName)
	if path == "" {
		return nil
	}
	if strings.TrimSpace(os.Getenv(r.Name)) != "" {
		return settingError{r.FileName, path, "cannot be set beside " + r.Name + ": set one of them"}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return settingError{r.FileName, path, "takes the path of a file that can be read: " + err.Error()}
	}
	if strings.TrimSpace(string(content)) == "" {
		return settingError{r.FileName, path, "takes the path of a file that holds the value, and this one is empty"}
	}
	return r.field.Addr().Interface().(envconfig.Decoder).Decode(string(content))
}
