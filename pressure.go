package delaybridge

// Pressure tells a source how full the queue is.
type Pressure struct {
	// Pending counts the messages that wait or are in flight, over all lanes.
	Pending int64
	// MemoryRatio is Redis's used memory by its maxmemory, of the fullest
	// node; 0 where no limit is set.
	MemoryRatio float64
}
