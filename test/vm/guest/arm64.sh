# arm64.sh runs in the arm64 virtual machine as root. It runs each gadget once, on a C and a Go program. The test outside gets
# /out. For each gadget, a folder there has the received data, ig's log, and ig's exit status in the file rc.
set -u
. /env
say() { echo "[$(cut -d' ' -f1 /proc/uptime) s of the guest] $*" | tee -a /out/times; }

say "kernel $(uname -r) on $(uname -m)"
burn-c &
# It runs until its input ends.
sleep 100000 | burn-go &
for gadget in profile_cpu profile_offcpu profile_pagefault; do
	mkdir -p /out/$gadget
	ig image import /$gadget.tar >/out/$gadget/import 2>&1 || say "FAIL: importing $gadget"
	receive -dir /out/$gadget -listen 127.0.0.1:4317 >/out/$gadget/receive.log 2>&1 &
	receiver=$!
	seconds=$SECONDS_OF_RUN
	case $gadget in
	profile_cpu) flags="--frequency=29 --unwind=whole" seconds=$((SECONDS_OF_RUN * 4)) ;; # loading takes a minute here
	profile_offcpu) flags=--comm=burn-c ;;                                                 # this machine cannot send more
	*) flags= ;;
	esac
	ig run "$gadget:$GADGET_TAG" --verify-image=false --auto-mount-filesystems --host -o none $flags --timeout="$seconds" \
		--otel-profiles-exporter=otlp --otel-profiles-interval=2s >/out/$gadget/ig.log 2>&1
	echo $? >/out/$gadget/rc
	kill $receiver
	wait $receiver
	say "$gadget has ended with $(cat /out/$gadget/rc)"
done
exit 0
