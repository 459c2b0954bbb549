# guest.sh runs malloc.sh with RUN=malloc. Inspektor Gadget's own trace_malloc collects whole stacks, while a program in C and
# one in Python allocate. /out/malloc has the results.
out=/out/malloc
mkdir -p $out

ig image import /trace_malloc.tar >>/out/gadget 2>&1 || fail "importing the image trace_malloc.tar"
receive -dir $out -listen 127.0.0.1:4317 >$out/receive.log 2>&1 &
receiver=$!
/shares-c &
c=$!
/shares-python /shares.py &
python=$!
say "two programs allocate"
ig run upstream-trace_malloc:dev --verify-image=false --host --uid=54321 -o json --collect-otel-stack --symbolizers=otel-ebpf-profiler \
	--annotate=malloc:profiles.value-field=size,malloc:profiles.type=alloc_space,malloc:profiles.unit=bytes \
	--otel-profiles-exporter=otlp --otel-profiles-interval=2s >$out/ig.json 2>$out/ig.err &
ig=$!
i=0
for program in shares-c shares-python; do
	until [ "$(grep "\"comm\":\"$program\"" $out/ig.json | grep '"operation":"[mc]alloc"' | grep -c heavy)" -ge 100 ]; do
		i=$((i + 1))
		[ $i -lt 600 ] && kill -0 $ig || fail "trace_malloc gave no whole stacks of $program: $(tail -n 3 $out/ig.err)"
		sleep 0.2
	done
done
say "Inspektor Gadget's trace_malloc has whole stacks of both programs"
kill -INT $ig
wait $ig || fail "ig ended with $?"
kill $c $python
kill $receiver
wait $receiver || fail "the receiver ended with $?"
