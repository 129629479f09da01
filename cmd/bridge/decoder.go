package main

import (
	"errors"
	"time"

	"delaybridge"
	"delaybridge/ingest"
)

// decoderConfig is what holds requests to the settings, the same for every way in.
// The error is a settingError.
func (s *Settings) decoderConfig() (ingest.DecoderConfig, error) {
	c := ingest.DefaultDecoderConfig()
	c.AllowedTargets = s.AllowedTargets
	c.MaxDelay = time.Duration(s.MaxDelay)
	c.MaxPayload = int(s.MaxPayload)
	c.MaxHeaders, c.MaxHeaderBytes = int(s.MaxHeaders), int(s.MaxHeaderBytes)
	c.ExpiresAfter = time.Duration(s.ExpiresAfter)
	c.ClockTolerance = time.Duration(s.ClockTolerance)
	for _, subject := range s.NATS.Ingest.Subjects {
		c.Sources = append(c.Sources, delaybridge.Target{Sink: delaybridge.SinkNATS, Name: subject})
	}
	for _, topic := range s.Kafka.Ingest.Topics {
		c.Sources = append(c.Sources, delaybridge.Target{Sink: delaybridge.SinkKafka, Name: topic})
	}
	var err error
	if c.Routes, err = ingest.ParseRoutes(string(s.Routes)); err != nil {
		return c, fieldSetting(err)
	}
	// Where ingest reads them itself, they are among its sources already.
	if setting, _ := s.readsAPISubjects(c.Routes); setting == "" {
		c.Sources = append(c.Sources, natsAPISubjects)
	}
	if c.SourceTargets, err = ingest.ParseSourceTargets(string(s.SourceTargets)); err != nil {
		return c, fieldSetting(err)
	}
	if c.RejectTarget, err = optionalTarget("REJECT_TARGET", s.RejectTarget); err != nil {
		return c, err
	}
	if c.DeadTarget, err = optionalTarget("DEAD_TARGET", s.DeadTarget); err != nil {
		return c, err
	}
	return c, nil
}

// newDecoder returns the decoder of decoderConfig; the error is a settingError.
func (s *Settings) newDecoder() (*ingest.Decoder, error) {
	c, err := s.decoderConfig()
	if err != nil {
		return nil, err
	}
	d, err := ingest.NewDecoder(c)
	if err != nil {
		return nil, fieldSetting(err)
	}
	return d, nil
}

// optionalTarget reads a setting that is a target, or empty for none.
func optionalTarget(name string, v text) (delaybridge.Target, error) {
	if v == "" {
		return delaybridge.Target{}, nil
	}
	t, err := delaybridge.ParseTarget(string(v))
	if err != nil {
		return t, *wrong(name, v, "takes a target such as nats://bridge.dead: "+reasonOf(err))
	}
	return t, nil
}

// fieldSetting turns an error whose field is a setting into a settingError.
func fieldSetting(err error) error {
	if fe, ok := errors.AsType[*delaybridge.FieldError](err); ok {
		return settingError{fe.Field, fe.Value, fe.Reason}
	}
	return err
}
