package main

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

const takesSeed = "takes an NKey seed, which begins with SU"

// natsDialTimeout bounds the opening of one connection.
const natsDialTimeout = 2 * time.Second

// natsSeed signs in with an NKey seed that may change from one connection to the
// next. The client takes a public key once; that of a new seed has to be put in
// its place before the next connection uses it. It is a dialer because the client
// calls that at the begin of each connection, with the lock held that its options
// are used under.
type natsSeed struct {
	settings *Settings
	seed     *rotating
	conn     atomic.Pointer[nats.Conn] // nil until there is one

	mu   sync.Mutex
	pair nkeys.KeyPair
}

// newNATSSeed returns the seed of the settings; the error is a settingError.
func (s *Settings) newNATSSeed() (*natsSeed, error) {
	d := &natsSeed{settings: s, seed: s.secretOf("NATS_NKEY", string(s.NATS.Nkey))}
	_, err := d.load()
	return d, err
}

// load reads the seed and returns its public key.
func (d *natsSeed) load() (string, error) {
	text := d.seed.read()
	pair, err := nkeys.FromSeed([]byte(text))
	if err != nil {
		return "", *wrong("NATS_NKEY", d.settings.NATS.Nkey, takesSeed)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return "", *wrong("NATS_NKEY", d.settings.NATS.Nkey, takesSeed)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pair = pair
	return public, nil
}

func (d *natsSeed) sign(nonce []byte) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pair.Sign(nonce)
}

// option has a connection sign in with the seed.
func (d *natsSeed) option(o *nats.Options) error {
	public, err := d.load()
	o.Nkey, o.SignatureCB, o.CustomDialer = public, d.sign, d
	return err
}

// Dial implements nats.CustomDialer.
func (d *natsSeed) Dial(network, address string) (net.Conn, error) {
	if nc := d.conn.Load(); nc != nil {
		public, err := d.load()
		if err != nil {
			return nil, err
		}
		nc.Opts.Nkey = public
	}
	return net.DialTimeout(network, address, natsDialTimeout)
}
