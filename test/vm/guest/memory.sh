# guest.sh runs memory.sh at its end, or alone with RUN=memory. profile_alloc and profile_lock watch two of three containers of
# one image. One of the two starts later. /out/memory has the results, and its folder counts has the programs' own counts.
out=/out/memory
mkdir -p $out/counts
# The other processes of the test would slow down the emulated machine.
killall burn 2>/dev/null

# worker KIND NAME starts a container.
worker() {
	ctr -n k8s.io run -d --null-io --mount "type=bind,src=$out/counts,dst=/counts,options=rbind:rw" test.local/allocate:1 "$2" /allocate "$2" || fail "ctr run $2"
	echo "$1 $2 $2 test.local/allocate:1 - -" >>$out/containers
}

# watch GADGET [FLAGS...] starts a gadget for two of the containers.
watch() {
	gadget=$1
	shift
	ahead ig run "$gadget:$GADGET_TAG" --verify-image=false -o json --containername=chosen,newcomer "$@" \
		--otel-profiles-exporter=otlp --otel-profiles-interval=2s >$out/$gadget.json 2>$out/$gadget.err &
}

# both CONTAINER waits until both gadgets have shown rows of a container.
both() {
	i=0
	for gadget in profile_alloc profile_lock; do
		until grep -q "\"containerName\":\"$1\"" $out/$gadget.json; do
			i=$((i + 1))
			[ $i -lt 1500 ] && kill -0 $alloc && kill -0 $lock || fail "$gadget gave no row of $1: $(tail -n 3 $out/$gadget.err)"
			sleep 0.2
		done
	done
}

ctr -n k8s.io images import /allocate.tar >/dev/null 2>>/out/import.log || fail "importing allocate"
for gadget in profile_alloc profile_lock; do
	ig image import /$gadget.tar >>/out/gadget 2>&1 || fail "importing the image $gadget.tar"
done
receive -dir $out -listen 127.0.0.1:4317 >$out/receive.log 2>&1 &
receiver=$!
worker before chosen
worker not-chosen other
say "two containers allocate"
# Each allocation is sampled. A probe costs more here than elsewhere.
watch profile_alloc --sample-bytes=1 --max-cost=100
alloc=$!
watch profile_lock
lock=$!
both chosen
say "first rows of profile_alloc and profile_lock"
worker during newcomer
both newcomer
say "rows of the container that has started later"
# At the end, the kernel detaches probes one after another, which takes up to a second here. Calls with a probe then do not
# count.
sleep 10
kill -INT $alloc $lock
wait $alloc || fail "profile_alloc ended with $?"
wait $lock || fail "profile_lock ended with $?"
say "both have ended"
touch $out/counts/stop
for name in chosen other newcomer; do
	i=0
	until [ -e $out/counts/$name ]; do
		i=$((i + 1))
		[ $i -lt 600 ] || fail "$name has written no counts"
		sleep 0.1
	done
done
kill $receiver
wait $receiver || fail "the receiver ended with $?"
