# guest.sh runs languages.sh with RUN=languages. profile_cpu collects whole stacks of containers with a native program, Python
# and Java. /out/languages has the same kinds of results as /out.
out=/out/languages
mkdir -p $out

# language KIND NAMESPACE NAME LOAD starts a container with the program of a load. It uses the virtual machine's interpreters.
language() {
	kind=$1 namespace=$2 name=$3 load=$4
	mounts=
	for folder in /usr /lib /lib64 /loads; do
		mounts="$mounts --mount type=bind,src=$folder,dst=$folder,options=rbind:ro"
	done
	# shellcheck disable=SC2046,SC2086 # words of their own
	ctr -n "$namespace" run -d --null-io --cpus 0.4 $mounts test.local/burn:1 "$name" $(cat /loads/$load/args) || fail "ctr run $name"
	echo "$kind $name $name test.local/burn:1 - - $load" >>$out/containers
}

# burn COMMAND... starts a container with a function of guest.sh, and records it here.
burn() {
	touch /out/containers
	mv /out/containers /out/containers.first
	"$@"
	sed 's/$/ burn/' /out/containers >>$out/containers
	mv /out/containers.first /out/containers
}

receive -dir $out -listen 127.0.0.1:4317 >$out/receive.log 2>&1 &
receiver=$!
for load in c python java; do language before k8s.io "lang-$load" $load; done
language not-looked-at default lang-elsewhere c
say "containers in three languages run"
ig run "profile_cpu:$GADGET_TAG" --verify-image=false --unwind=whole -o json --frequency=99 \
	--otel-profiles-exporter=otlp --otel-profiles-interval=2s >$out/ig.json 2>$out/ig.err &
ig=$!
i=0
until [ -s $out/ig.json ]; do
	i=$((i + 1))
	[ $i -lt 6000 ] && kill -0 $ig 2>/dev/null || fail "ig gave no row of profile_cpu"
	sleep 0.1
done
say "first rows of profile_cpu"
burn plain ended k8s.io whole-brief 2
burn pod ended shop whole-job burner 2
burn pod during shop whole-pay burner
language during k8s.io lang-late python
say "four more containers run"
ended $out/containers
sleep "$SECONDS_OF_LANGUAGES"
kill -INT $ig
wait $ig || fail "ig ended with $?"
say "ig has ended"
kill $receiver
wait $receiver || fail "the receiver ended with $?"
