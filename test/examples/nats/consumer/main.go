// Command consumer handles each delayed message once, though it may arrive twice:
//
//	go run ./test/examples/nats/consumer
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	server := flag.String("server", nats.DefaultURL, "NATS server")
	subject := flag.String("subject", "orders.>", "subjects to read")
	durable := flag.String("durable", "example", "name of the consumer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	nc, err := nats.Connect(*server)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := attach(ctx, js, *subject, *durable)
	if err != nil {
		log.Fatal(err)
	}

	var once once
	reading, err := consumer.Consume(func(m jetstream.Msg) {
		h := m.Headers()
		// One schedule is one id at one time: the id alone would also drop the next
		// schedule of the same id.
		schedule := h.Get("Bridge-Id") + " " + h.Get("Bridge-Scheduled-At")
		// Bridge-Attempt above 1 says that a copy may have arrived before. It is a
		// hint and no proof: the stream delivers again by itself, too.
		if once.first(schedule) {
			fmt.Printf("handled %s, attempt %s, due %s: %s\n", h.Get("Bridge-Id"), h.Get("Bridge-Attempt"), h.Get("Bridge-Due-At"), m.Data())
		} else {
			fmt.Printf("dropped %s, attempt %s: handled before\n", h.Get("Bridge-Id"), h.Get("Bridge-Attempt"))
		}
		if err := m.Ack(); err != nil { // after the work, never before it
			log.Print(err)
		}
	})
	if err != nil {
		log.Fatal(err)
	}
	defer reading.Stop()
	fmt.Println("reading", *subject)
	<-ctx.Done()
}

// attach finds the stream that holds the subject, or makes one.
func attach(ctx context.Context, js jetstream.JetStream, subject, durable string) (jetstream.Consumer, error) {
	stream, err := js.StreamNameBySubject(ctx, subject)
	if err != nil {
		stream = "ORDERS"
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{subject}, Duplicates: 10 * time.Minute}); err != nil {
			return nil, err
		}
	}
	return js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: durable, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
	})
}

// once remembers what was handled. A service of yours does this in its database:
// a table with the schedule as its key, written in the transaction of the work
// itself, and cleared of what is older than a copy can be.
type once struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (o *once) first(schedule string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]bool{}
	}
	if o.seen[schedule] {
		return false
	}
	o.seen[schedule] = true
	return true
}
