package test

import (
	"testing"

	"github.com/nats-io/nkeys"
)

// seeded is a user of NATS that signs in by a key.
type seeded struct{ seed, public string }

func newSeed(t *testing.T) seeded {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return seeded{string(seed), public}
}
