package ingest

import "delaybridge"

// Tracer follows records on their way into the queue. It is called from several
// goroutines.
type Tracer interface {
	// Received is told of records that were read, and of the requests that were
	// made of them, before these are stored. It may give requests other headers, in
	// slices of their own.
	Received(records []Record, requests []delaybridge.Request) Trace
}

// Trace follows the records of one call of Received.
type Trace interface {
	// Stored is told that the queue has the i-th record.
	Stored(i int, outcome delaybridge.Outcome)
	// End is told that the records without an outcome were given up: their source
	// delivers them again.
	End()
}
