#!/bin/bash
# Builds each fuzz target that the source has into $OUT, as a program with libFuzzer. fuzz_test.go holds it to all of them.
set -euo pipefail
cd "$SRC/berth"
make -s fuzz-targets | while read -r package target; do
	name=$(tr -c 'a-zA-Z0-9\n' _ <<<"${package#./} $target")
	compile_native_go_fuzzer_v2 "github.com/berth-dev/berth/${package#./}" "$target" "$name"
	# It says that it did not find a target, and succeeds.
	test -x "$OUT/$name"
done
