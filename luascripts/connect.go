package luascripts

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// The ways to reach Redis.
const (
	ModeSingle   = "single"
	ModeSentinel = "sentinel"
	ModeCluster  = "cluster"
)

// Times of one command. A lost reply shows after readTimeout at the latest; a
// host that is not there after dialTimeout.
const (
	dialTimeout = 2 * time.Second
	readTimeout = 3 * time.Second
	poolTimeout = 3 * time.Second
)

// Link is what a URL does not say of how Redis is reached.
type Link struct {
	// DialTLS opens a connection and goes through its TLS handshake, each time it
	// is called with what is valid then. It is used where the URL says rediss://.
	// Nil: with the system's authorities, by TLS 1.2 or later.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// Password gives the password of each new connection, in place of the URL's.
	// Nil: the URL's. User and password of Sentinels are the URL's in any case.
	Password func() (string, error)
	// Credentials gives user and password, in place of both of the URL's. Nil:
	// Password, or the URL's.
	Credentials func() (user, password string, err error)
}

// Connect makes the client of a URL that says all there is to say; see ConnectBy.
func Connect(text, mode string) (redis.UniversalClient, error) { return ConnectBy(text, mode, Link{}) }

// ConnectBy makes the client of a URL, in the URL forms that go-redis takes for each
// mode; time-outs and pool sizes that the URL names are kept. It does not connect
// yet; the error is about the URL or mode, and does not show a password.
//
// The client never sends a command twice by itself: a claim that ran and whose
// reply was lost must not run again unseen. In a cluster it still follows
// redirects, and may repeat a command after a time-out while doing so, which the
// scripts bear.
func ConnectBy(text, mode string, link Link) (redis.UniversalClient, error) {
	if u, err := url.Parse(text); err == nil && u.Query().Has("skip_verify") {
		return nil, errors.New("redis URL: skip_verify is not taken: it would leave the server unverified, and say nothing of it")
	}
	switch mode {
	case ModeSingle:
		o, err := redis.ParseURL(text)
		if err != nil {
			return nil, urlError(text, err)
		}
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		setTimeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout)
		o.DisableIdentity, o.MaintNotificationsConfig = true, noNotifications()
		link.apply(&o.TLSConfig, &o.Dialer, &o.CredentialsProviderContext, o.Username, o.DialTimeout)
		return redis.NewClient(o), nil
	case ModeSentinel:
		o, err := redis.ParseFailoverURL(text)
		if err != nil {
			return nil, urlError(text, err)
		}
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		setTimeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout)
		o.DisableIdentity = true
		link.apply(&o.TLSConfig, &o.Dialer, &o.CredentialsProviderContext, o.Username, o.DialTimeout)
		return redis.NewFailoverClient(o), nil
	case ModeCluster:
		o, err := redis.ParseClusterURL(text)
		if err != nil {
			return nil, urlError(text, err)
		}
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		setTimeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout)
		o.DisableIdentity, o.MaintNotificationsConfig = true, noNotifications()
		link.apply(&o.TLSConfig, &o.Dialer, &o.CredentialsProviderContext, o.Username, o.DialTimeout)
		return redis.NewClusterClient(o), nil
	}
	return nil, fmt.Errorf("redis mode %q, want %s, %s or %s", mode, ModeSingle, ModeSentinel, ModeCluster)
}

type (
	dialFunc        = func(ctx context.Context, network, address string) (net.Conn, error)
	credentialsFunc = func(ctx context.Context) (user, password string, err error)
)

// apply puts the link into the options of a client.
func (l *Link) apply(config **tls.Config, dial *dialFunc, credentials *credentialsFunc, user string, timeout time.Duration) {
	switch {
	case *config == nil: // the URL says redis://
	case l.DialTLS == nil:
		// Each node of a cluster, and each that Sentinels name, has its own name.
		*config = &tls.Config{MinVersion: tls.VersionTLS12}
	default:
		*config = nil
		*dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return l.DialTLS(ctx, network, address)
		}
	}
	switch {
	case l.Credentials != nil:
		*credentials = func(context.Context) (string, string, error) { return l.Credentials() }
	case l.Password != nil:
		*credentials = func(context.Context) (string, string, error) {
			password, err := l.Password()
			return user, password, err
		}
	}
}

// Repeats reports whether a script may have been sent again after an answer that was
// late, as the client of a cluster does: what the last one was answered then says
// nothing of those before it.
func (q *Queue) Repeats() bool {
	_, ok := q.client.(*redis.ClusterClient)
	return ok
}

// setTimeouts fills in the times that the URL does not name.
func setTimeouts(dial, read, write, pool *time.Duration) {
	*dial = cmp.Or(*dial, dialTimeout)
	*read = cmp.Or(*read, readTimeout)
	*write = cmp.Or(*write, readTimeout)
	*pool = cmp.Or(*pool, poolTimeout)
}

// urlError says what is wrong with a URL. Parsers quote what they stumble over:
// that is only shown where it cannot be a piece of a password.
func urlError(text string, err error) error {
	u, parseErr := url.Parse(text)
	if parseErr != nil || strings.Contains(u.Opaque+u.Path+u.RawQuery+u.Fragment, "@") {
		return errors.New("redis URL: it cannot be read, want redis://user:password@host:port/db; " +
			"in user and password, all but letters and digits has to be percent-encoded")
	}
	return fmt.Errorf("redis URL: %w", err)
}

// noNotifications keeps go-redis from sending a command on each connection that
// only some hosted Redis servers know.
func noNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// info is one section of one server's INFO.
type info struct {
	fields map[string]string
	err    error
}

// infos asks Redis, or every master of a cluster, for a section of INFO.
func (q *Queue) infos(ctx context.Context, section string) []info {
	var mu sync.Mutex
	var all []info
	ask := func(ctx context.Context, c redis.Cmdable) error {
		text, err := c.Info(ctx, section).Result()
		fields := map[string]string{}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				fields[name] = value
			}
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, info{fields, err})
		return nil
	}
	if cluster, ok := q.client.(*redis.ClusterClient); ok {
		if err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return ask(ctx, c) }); err != nil {
			all = append(all, info{err: err})
		}
		return all
	}
	_ = ask(ctx, q.client)
	return all
}
