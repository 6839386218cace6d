# Every target needs Go on Linux and nothing else; what an optional tool adds
# (a C compiler, bubblewrap) is said where it is missing.

GO        ?= go
PKGS      ?= ./...
TESTFLAGS ?=
FUZZTIME  ?= 20s
BENCHTIME ?= 1s
CC        := $(shell $(GO) env CC)
HAVE_CC   := $(shell command -v $(firstword $(CC)) 2>/dev/null)
# Programs with the race detector else sleep for a second before they end.
export GORACE ?= atexit_sleep_ms=0
EXAMPLES  := ./examples/declarative

.PHONY: help demo all check test race fuzz bench generate golden

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## generate, build and run the declarative examples in real local sandboxes
	@echo 'building (a few minutes the first time)…'
	@$(GO) generate $(EXAMPLES)/csvstats $(EXAMPLES)/imagesafe
	@$(GO) build -o bin/csvstats $(EXAMPLES)/csvstats
	@$(GO) build -o bin/imagesafe $(EXAMPLES)/imagesafe
	@echo '$$ bin/csvstats examples/declarative/csvstats/weather.csv'
	@./bin/csvstats examples/declarative/csvstats/weather.csv
	@echo
	@echo '$$ bin/imagesafe -o bin/rocket-thumb.png examples/declarative/imagesafe/rocket.jpg'
	@./bin/imagesafe -o bin/rocket-thumb.png examples/declarative/imagesafe/rocket.jpg

all: check test ## everything that must hold before a commit

check: ## formatting, vet, staticcheck, generated files, architecture
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
		if [ -n "$$out" ]; then echo "gofmt -w these files:"; echo "$$out"; exit 1; fi
	$(GO) vet $(PKGS)
	$(GO) tool staticcheck $(PKGS)
	$(GO) run ./internal/proto/protogen -check
	$(GO) run ./internal/errdoc -check
	$(GO) run ./internal/apidoc -check
	$(GO) tool sandboxgen -check $(PKGS)
	$(GO) test -count=1 ./internal/archtest

test: ## all tests, with the race detector where a C compiler is found
ifneq ($(HAVE_CC),)
	CGO_ENABLED=1 $(GO) test -race -timeout 20m $(TESTFLAGS) $(PKGS)
else
	@echo 'no C compiler ($(CC)) found: testing without the race detector'
	$(GO) test -timeout 20m $(TESTFLAGS) $(PKGS)
endif

race: ## all tests under the race detector; needs a C compiler
	CGO_ENABLED=1 $(GO) test -race -timeout 20m $(PKGS)

fuzz: ## each fuzz target for FUZZTIME
	@for pkg in $$($(GO) list $(PKGS)); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

bench: ## the benchmarks: ratios to baselines measured in the same run
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) $(PKGS) | grep -v 'no test files\|^ok\|^PASS\|^?'

generate: ## write everything that is generated
	$(GO) run ./internal/proto/protogen
	$(GO) run ./internal/errdoc
	$(GO) run ./internal/apidoc
	$(GO) generate ./examples/... ./gen/gentest/... ./internal/acceptance/... ./providers/local

golden: ## rewrite the golden files of the generator
	$(GO) test ./gen/... -update
