# Does a little of what shell scripts do, in turn, without starting other programs.
set -f
declare -A seen
n=0

orders() {
	local i
	names=() prices=()
	for ((i = 0; i < $1; i++)); do
		names+=("order-$((i * 7919 % 1009))")
		printf -v "prices[i]" '%d.%02d' $((i * i % 97)) $((i % 100))
	done
}

texts() {
	local s="${names[*]}" w t=
	for w in "${names[@]}"; do
		case $w in
		*7 | *[13]9) t+=${w#order-}, ;;
		order-1*) t+=${w^^}: ;;
		*) t+="${w/order/o} " ;;
		esac
		if [[ $w =~ ^([a-z]+)-([0-9]{2,4})$ && ${BASH_REMATCH[2]} -gt 500 ]]; then
			n=$((n + ${#BASH_REMATCH[1]}))
		elif [ "$w" \< order-3 ] || test -z "${w%%*-}"; then
			: $((n += 2))
		fi
	done
	s=${s//-/:} s=${s%% *}${s##* } t=${t:3:200}${t: -9}
	printf -v s '%-20s|%08x|%q|%(%F)T' "$s" "$n" "$t" "$n"
	n=$((n + ${#s} + ${#t}))
}

collected() {
	local w i list
	for w in "${names[@]}"; do
		seen[$w]=$((${seen[$w]:-0} + 1))
	done
	for w in "${!seen[@]}"; do
		[[ $w == *3 ]] && unset "seen[$w]"
	done
	IFS=, read -r -a list <<<"${prices[*]// /,}"
	for i in "${!list[@]}"; do
		((list[i % 7] = 10#${list[i]%%.*} ^ i << 2 & 0xff, i > 50)) && break
	done
	mapfile -t list <<<"${names[*]// /$'\n'}"
	n=$((n + ${#list[@]} + ${#seen[@]}))
}

fib() {
	local -i x=$1
	if ((x < 2)); then
		r=$x
		return
	fi
	local a
	fib $((x - 1)); a=$r
	fib $((x - 2)); r=$((a + r))
}

expanded() {
	local a b
	for a in {a..e}{1..4}; do
		for b in $'x\ty' "${a@Q}" "${!a:-none}" ~; do
			set -- "$a" "$b" ${b:+"$@"}
			shift $(($# > 3 ? $# - 3 : 0))
		done
	done
	eval "f$((n % 9))() { local q=\$1; while ((q-- > 0)); do [[ -n \$q && ! -v q[1] ]] || continue; done; }; f$((n % 9)) 20"
	getopts ab:c o -a -b x || true
	OPTIND=1
}

for ((round = 0; ; round++)); do
	orders 120
	texts
	collected
	fib 11
	expanded
	((round)) || echo ready
done
