# The few verbs of this repository; CI calls the same ones. What a verb does in more than a line stands in scripts/
# or conformance/.
#
# ARGS goes to the program that a verb starts:  make run ARGS="--port 7000 --save ''"

TARGET := $(or $(CARGO_TARGET_DIR),target)
ARGS ?=

# 127.0.0.1:6379 unless ARGS starts with a configuration file, which then says where; later options win over these.
ADDRESS := $(if $(filter-out -%,$(firstword $(ARGS))),,--bind 127.0.0.1 --port 6379)

.PHONY: help run test soak conformance bench bench-full doctor-cases fmt

help: ## say what the verbs are (the default)
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

run: ## build the release binary and start it on 127.0.0.1:6379; ARGS are its arguments
	cargo build --release -p evenkeel
	@exec $(TARGET)/release/evenkeel $(ADDRESS) $(ARGS)

test: ## install what is missing, check format and lints, run every test
	@scripts/test

soak: ## kill the server 500 times under load, then run the random tests for an hour; for a night
	@scripts/soak

conformance: ## run the units of Redis' own test suite that conformance/units.txt lists
	@scripts/setup conformance
	@[ -n "$$EVENKEEL_BIN" ] || cargo build --release -p evenkeel
	@EVENKEEL_BIN="$${EVENKEEL_BIN:-$(TARGET)/release/evenkeel}" conformance/run $(ARGS)

bench: ## measure side by side with redis-server and Valkey in ten minutes, and write target/bench-short.html and .json; ARGS instead
	@scripts/setup peers
	cargo build --profile measured -p evenkeel
	cargo build --release -p evenkeel-bench
	@$(TARGET)/release/evenkeel-bench $(or $(ARGS),short --quick --json $(TARGET)/bench-short.json --html $(TARGET)/bench-short.html)

bench-full: ## run every experiment, thoroughly, and write target/bench.json and target/bench.html; takes hours
	@$(MAKE) --no-print-directory bench ARGS="all --json $(TARGET)/bench.json --html $(TARGET)/bench.html"

doctor-cases: ## let the doctor diagnose every case whose cause is known (root, for what runs in the kernel)
	@scripts/setup doctor peers
	cargo test -p evenkeel-doctor --features bpf --test cases -- --include-ignored --nocapture $(ARGS)

fmt: ## format all code
	cargo fmt --all
