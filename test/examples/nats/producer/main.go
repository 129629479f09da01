// Command producer publishes to NATS what Delaybridge is to deliver later:
//
//	go run ./test/examples/nats/producer -delay 5s -id order-7 '{"order":7}'
//	go run ./test/examples/nats/producer -cancel -id order-7
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	server := flag.String("server", nats.DefaultURL, "NATS server")
	subject := flag.String("subject", "bridge.schedule", "subject that the bridge reads from")
	target := flag.String("target", "nats://orders.timeout", "where the message goes")
	delay := flag.Duration("delay", 5*time.Second, "how long from now")
	id := flag.String("id", "", "the message's identity: the same again replaces it")
	cancel := flag.Bool("cancel", false, "take the message of -id back")
	flag.Parse()

	nc, err := nats.Connect(*server)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}

	m := nats.NewMsg(*subject)
	m.Data = []byte(flag.Arg(0))
	if *id != "" {
		m.Header.Set("Bridge-Id", *id)
	}
	if *cancel {
		m.Header.Set("Bridge-Op", "cancel")
	} else {
		m.Header.Set("Bridge-Target", *target)
		m.Header.Set("Bridge-Delay", delay.String())
	}

	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	// The answer of the stream is the promise: from here on the message is kept.
	// The same Nats-Msg-Id in each try has the stream drop what it has already.
	ack, err := js.PublishMsg(ctx, m, jetstream.WithMsgID(nats.NewInbox()), jetstream.WithRetryAttempts(3))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("sent: %s:%d\n", ack.Stream, ack.Sequence)
}
