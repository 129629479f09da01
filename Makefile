# `make` alone prints this list.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

GO ?= go
PACKAGES ?= ./...
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME ?= 10s
CHAOSTIME ?= 60s
BENCHFLAGS ?=
# Tests to leave out, as a pattern.
SKIP ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

# What has dependencies that the bridge is not to have is a module of its own.
MODULES = $(patsubst %/go.mod,%,$(wildcard test/*/go.mod))
# run_tests tests the bridge's packages with the flags $(1), and after that the
# modules $(2), unless PACKAGES names some packages only, and ends with a word if any
# of it failed. test/count runs a few that failed once more, and says how it ended.
run_tests = { failed=0; $(GO) test -json -count=1 -skip '$(SKIP)' $(1) $(PACKAGES) || failed=1; \
	if [ "$(PACKAGES)" = ./... ]; then for m in $(2); do (cd $$m && $(GO) test -json -count=1 $(1) ./...) || failed=1; done; fi; \
	if [ $$failed = 1 ]; then echo '{"Action":"broken"}'; fi; }

.PHONY: help
help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | while IFS=$$'\t' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

.PHONY: build
build: ## build bin/bridge, the same bytes wherever it is built from a commit
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/bridge ./cmd/bridge

.PHONY: dev
dev: ## run everything in one process, with nothing installed
	$(GO) run ./cmd/bridge dev

.PHONY: test
test: redis chromium ## run every test; the last line counts what passed, failed and was skipped
	@$(call run_tests,-timeout 20m,$(MODULES)) | $(GO) run ./test/count -again -timeout 20m

.PHONY: race
race: redis ## run the bridge's own tests under the race detector
	@$(call run_tests,-race -timeout 30m,) | $(GO) run ./test/count -again -race -timeout 30m

.PHONY: chaos
chaos: redis ## run the bridge among faults for CHAOSTIME (60s), and print what happened
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; \
	if ! $(GO) test -v -count=1 -timeout 10m -run '^TestChaos$$' ./test -args -chaos=$(CHAOSTIME) >"$$out" 2>&1; then \
		cat "$$out"; echo "What failed, and how to repeat it:"; grep -E '^ +[a-z_]+_test\.go:[0-9]+: ' "$$out" | cut -c1-400 | head -n 20; exit 1; fi; \
	grep -E 'chaos: .* messages=' "$$out" || { cat "$$out"; echo "The chaos test printed no summary."; exit 1; }

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME (10s)
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; \
	grep -rE '^func Fuzz' --include='*_test.go' . | sed -E 's|^(.*)/[^/:]*:func (Fuzz[A-Za-z0-9_]*).*|\1 \2|' | while read -r pkg name; do \
		echo "$$pkg $$name"; \
		if $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null >"$$out" 2>&1; then tail -n 3 "$$out"; \
		elif grep -q '^    context deadline exceeded$$' "$$out" && ! grep -q 'Failing input written' "$$out"; then \
			tail -n 6 "$$out" | head -n 1; echo "The time was over in the middle of an input, which go reports as a failure; no input failed."; \
		else cat "$$out"; exit 1; fi; \
	done

.PHONY: bench
bench: redis ## run every benchmark
	$(GO) test -run '^$$' -bench . -benchmem $(PACKAGES)

.PHONY: bench-table
bench-table: redis ## compare with other ways to deliver later, in about 14 minutes; BENCHFLAGS=-quick for a try
	cd test/bench && $(GO) run . $(BENCHFLAGS)

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, go mod verify
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	@for m in . $(MODULES); do (set -x; cd $$m && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./...) || exit 1; done
	$(GO) mod verify

.PHONY: fmt
fmt: ## format the code
	gofmt -w .

.PHONY: redis
redis: ## install redis-server, which the tests need, where it is missing
	@if command -v redis-server >/dev/null; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then echo "The tests need redis-server 7 or later: install it and run this again."; exit 1; fi; \
	if [ "$$(id -u)" = 0 ]; then as_root=; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root="sudo -n"; \
	else echo "The tests need redis-server 7 or later: sudo apt-get install redis-server, then run this again."; exit 1; fi; \
	echo "Installing redis-server from the distribution's packages."; \
	$$as_root apt-get update -q >/dev/null && $$as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -yq --no-install-recommends redis-server >/dev/null

.PHONY: chromium
chromium: ## install Chromium, which the tests of the console need, where it is missing
	@if [ -n "$${BRIDGE_TEST_CHROMIUM:-}" ]; then exit 0; fi; \
	for name in chromium chromium-browser google-chrome google-chrome-stable; do if command -v $$name >/dev/null; then exit 0; fi; done; \
	without() { echo "WARNING: the console is not tested in a browser, because $$1: install Chromium, or name one with BRIDGE_TEST_CHROMIUM, and run this again."; exit 0; }; \
	if ! command -v apt-get >/dev/null; then without "there is no apt-get to install Chromium with"; fi; \
	if [ "$$(id -u)" = 0 ]; then as_root=; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root="sudo -n"; \
	else without "installing Chromium takes root"; fi; \
	echo "Installing Chromium from the distribution's packages."; \
	$$as_root apt-get update -q >/dev/null || true; \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends chromium >/dev/null || without "Chromium could not be installed"

.PHONY: kafka
kafka: ## fetch Apache Kafka for the tests, from Maven's registry, and start it once
	@for tool in java mvn; do if ! command -v $$tool >/dev/null; then \
		echo "There is no $$tool, so Apache Kafka is not fetched. Where it is not there yet, the tests use an in-process broker (kfake) and say so."; exit 0; fi; done; \
	BRIDGE_TEST_KAFKA=real $(GO) test -count=1 -run '^TestKafka$$/^NewKafka' ./test/servers

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
