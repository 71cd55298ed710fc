# The few targets of this repository; CI calls the same targets. Recipes of more than a line are in scripts/
# or conformance/.
#
# ARGS goes to the program that a target starts:  make run ARGS="--port 7000 --save ''"

TARGET := $(or $(CARGO_TARGET_DIR),target)
ARGS ?=

# 127.0.0.1:6379, and metrics on port 8379, unless ARGS starts with a configuration file, which then sets the
# address. Later options override these: a second server needs --port and --http-port.
ADDRESS := $(if $(filter-out -%,$(firstword $(ARGS))),,--bind 127.0.0.1 --port 6379 --http-port 8379)

.PHONY: help run cluster test fuzz package soak conformance bench bench-full doctor doctor-cases fmt

help: ## list the targets (the default)
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

run: ## build the release binary and start it on 127.0.0.1:6379, HTTP on :8379; ARGS are its arguments
	cargo build --release -p evenkeel
	@exec $(TARGET)/release/evenkeel $(ADDRESS) $(ARGS)

cluster: ## build, then start etcd and three nodes on loopback until Ctrl-C; ARGS are the nodes' arguments
	@scripts/setup etcd
	cargo build --release -p evenkeel
	@scripts/cluster $(TARGET)/release/evenkeel $(ARGS)

test: ## install missing tools, check format and lints, run every test
	@scripts/test

package: ## build a .deb, a tarball and an OCI image into target/package; ARGS="deb" builds one
	@scripts/setup bpf package
	@scripts/package $(ARGS)

fuzz: ## run every fuzz target for a minute, or for ARGS seconds
	@scripts/setup fuzz
	@scripts/fuzz $(ARGS)

soak: ## kill the server 500 times under load, then run the random tests for an hour; for a night
	@scripts/soak

conformance: ## run Valkey's own test suite; with ARGS="--suite redis" the tests that only Redis' suite has
	@scripts/setup conformance
	@[ -n "$$EVENKEEL_BIN" ] || cargo build --release -p evenkeel
	@EVENKEEL_BIN="$${EVENKEEL_BIN:-$(TARGET)/release/evenkeel}" conformance/run $(ARGS)

bench: ## compare with redis-server and Valkey in ten minutes; writes target/bench-short.html, .json; or ARGS
	@scripts/setup peers
	cargo build --profile measured -p evenkeel
	cargo build --release -p evenkeel-bench
	@$(TARGET)/release/evenkeel-bench \
		$(or $(ARGS),short --quick --json $(TARGET)/bench-short.json --html $(TARGET)/bench-short.html)

bench-full: ## run every experiment thoroughly, for hours; writes target/bench.json and .html
	@$(MAKE) --no-print-directory bench ARGS="all --json $(TARGET)/bench.json --html $(TARGET)/bench.html"

doctor: ## build evenkeel-doctor with its part for the kernel; installs clang and libelf
	@scripts/setup bpf
	cargo build --release -p evenkeel-doctor --features bpf
	@echo "sudo $(TARGET)/release/evenkeel-doctor diagnose --port 6379"

doctor-cases: ## diagnose every case of known cause with the doctor (needs root for eBPF)
	@scripts/setup doctor peers corpus
	cargo test -p evenkeel-doctor --features bpf --test cases -- --include-ignored --nocapture $(ARGS)

fmt: ## format all code
	cargo fmt --all
