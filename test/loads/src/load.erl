%% 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
%% No caller returns the result of its call, because Erlang makes a jump of such a call.
-module(load).
-export([main/0]).

cpu() ->
    {Milliseconds, _} = statistics(runtime),
    Milliseconds.

%% Notes a function's CPU time, and reports whether that is below its share.
less(Function, Milliseconds, Parts) ->
    Used = get(Function) + Milliseconds,
    put(Function, Used),
    Used < get(due) * Parts.

heavy(I, X, Start) when I > 0 ->
    heavy(I - 1, (X * 31 + I) band 16#ffffff, Start);
heavy(0, X, Start) ->
    case less(heavy, cpu() - Start, 6) of
        true -> heavy(100000, X, cpu());
        false -> X
    end.

light(I, X, Start) when I > 0 ->
    light(I - 1, (X * 31 + I) band 16#ffffff, Start);
light(0, X, Start) ->
    case less(light, cpu() - Start, 3) of
        true -> light(100000, X, cpu());
        false -> X
    end.

rest(I, X, Start) when I > 0 ->
    rest(I - 1, (X * 31 + I) band 16#ffffff, Start);
rest(0, X, Start) ->
    case less(rest, cpu() - Start, 1) of
        true -> rest(100000, X, cpu());
        false -> X
    end.

work() ->
    put(due, get(due) + 2),
    {heavy(0, 1, cpu()), light(0, 1, cpu()), rest(0, 1, cpu())}.

step() ->
    {stepped, work()}.

steps(0) ->
    done;
steps(N) ->
    step(),
    steps(N - 1).

run() ->
    {stepped, _} = step(),
    io:put_chars("ready\n"),
    {ran, steps(1 bsl 50)}.

main() ->
    [put(Key, 0) || Key <- [due, heavy, light, rest]],
    {ran, Steps} = run(),
    {ended, Steps}.
