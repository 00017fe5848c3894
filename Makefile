# `make` lists the targets. Only Go, make and git are needed to begin with.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

# Tools of the workshop are pinned in modules of their own, so that they never
# touch the versions that the product uses. The first use of each builds it, which
# takes minutes on a small machine; later uses come from Go's build cache.
BUF      := go tool -modfile=tools/buf/go.mod buf
GOLANGCI := go tool -modfile=tools/lint/go.mod golangci-lint

# What the API may not break: the main branch, as the server has it or as it is here.
BASE ?= $(shell git rev-parse -q --verify origin/main >/dev/null && echo origin/main || echo main)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/macexec and bin/macexec-keeper
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/ ./cmd/macexec ./cmd/macexec-keeper

.PHONY: programs
programs: ## Install the programs that the shipped tools run (ffmpeg, SoX, ImageMagick)
	@scripts/install-programs

.PHONY: demo
demo: programs build ## Run the main job on real input, from nothing, in seconds
	bin/macexec demo

.PHONY: for-tests
for-tests: ## Install what the tests need besides: a C compiler, ssh and sshd, strace, node with npm
	@scripts/install-programs for-tests
	@$(MAKE) --silent $(EXAMPLE)/node_modules/.package-lock.json

EXAMPLE := examples/javascript

$(EXAMPLE)/node_modules/.package-lock.json: $(EXAMPLE)/package-lock.json
	npm ci --prefix $(EXAMPLE) --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: test
test: for-tests ## Run every test with the race detector, and vet for Linux and macOS
	go vet ./...
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go vet ./...
	go test -race -count=1 -timeout=30m ./...
	go test -count=1 -tags=faults ./internal/fault
	go test -count=1 -run='^TestFairShares$$' ./jobs/engine # a thousand processes are too many for the race detector
	go test -count=1 -timeout=20m -v -run='^TestFaultMatrix$$' ./internal/endtoend | grep -v '^ *--- PASS\|^=== ' # its daemons are real ones, so it has none of it

.PHONY: breaks
breaks: ## Remove one guard at a time and show which test turns red (half an hour)
	go test -count=1 -timeout=2h -v -run='^TestGuardsAreNoticed$$' ./internal/breaks -really

.PHONY: chaos
chaos: for-tests ## Kill daemons, keepers and tools and fill the disk for CHAOS (10m) among many callers, and check what was told
	go test -count=1 -timeout=0 -v -run='^TestChaos$$' ./internal/endtoend -chaos=$(CHAOS)$(if $(SEED), -seed=$(SEED))

CHAOS := 10m

.PHONY: bench
bench: programs build ## Measure a real daemon against what this machine can do (BENCH_QUICK=1: less)
	go run ./internal/bench

.PHONY: cross
cross: ## Build and vet for both kinds of Mac
	for arch in arm64 amd64; do \
	  export GOOS=darwin GOARCH=$$arch CGO_ENABLED=0; \
	  go build ./... && go vet ./...; \
	done

.PHONY: lint
lint: ## Run golangci-lint, buf lint and buf breaking (slow the first time)
	$(GOLANGCI) run
	GOOS=darwin CGO_ENABLED=0 $(GOLANGCI) run
	$(BUF) lint
	@if git cat-file -e $(BASE):buf.yaml 2>/dev/null; \
	  then $(BUF) breaking --against '.git#ref=$(BASE)'; \
	  else echo 'buf breaking: $(BASE) has no API yet, so there is nothing to break'; fi

.PHONY: fmt
fmt: ## Format the Go code
	$(GOLANGCI) fmt

.PHONY: generate
generate: ## Write the generated code and the generated parts of docs/
	$(BUF) generate
	go test -count=1 ./internal/house -update

.PHONY: verify
verify: generate ## Prove that generated files and go.mod files are fresh (slow the first time)
	for dir in . tools/buf tools/gen tools/lint tools/otelcol; do (cd $$dir && go mod tidy -diff); done
	git diff --exit-code
