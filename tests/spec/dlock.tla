------------------------------- MODULE dlock -------------------------------
(* One exclusive lock of dlock, as docs/protocol.md has it: the store, and for each run a dlock, its guard and its job on a *)
(* machine of its own. Time is relative: the store counts down its lease, each machine counts down to KILL and counts up the *)
(* age of what it sent. README.md beside this file says what each line stands for in the code, and what is not modelled.     *)
EXTENDS Naturals, Sequences, FiniteSets, TLC
CONSTANTS Runs, NoWait,        \* the runs, each with one token; those without --wait
          TTL, TURN, STALE,    \* ticks of the store: a lease, an unconfirmed grant, how long a heartbeat counts
          KILL,                \* ticks of the holder from sent to KILL: all of the job is dead before the next one
          Crashes, Slips, Forces, Outages, Grants,  \* how much may happen; Slips: a clock may miss a tick in each lease
          Dropped              \* assumptions that do not hold, and rules that are left out
None == "none"
VARIABLES s,      \* the record of the lock (see Init)
          up,     \* whether the store answers
          sent,   \* the requests that were ever sent: each may arrive now, later, again, or never
          att,    \* the attempt that waits for a reply: op, age on the sender's clock, reply, fence in the reply
          d, g, j, still,           \* dlock, guard, job; which of the first two are stopped
          kill, mine, slow,         \* local ticks until KILL; the fence that the job has; ticks until the clock may miss one
          lost, budget              \* runs whose job has lived without its hold; what may still happen
vars == <<s, up, sent, att, d, g, j, still, kill, mine, slow, lost, budget>>
procs == <<d, g, j, still>>
Idle == [op |-> "", age |-> 0, rep |-> "", f |-> 0]
Free(t) == [t EXCEPT !.own = None, !.left = 0, !.conf = FALSE, !.rev = FALSE, !.of = 0]
Init == /\ s = [own |-> None, left |-> 0, conf |-> FALSE, rev |-> FALSE,  \* the hold: confirmed, revoked
                of |-> 0, fence |-> 0,                                   \* its fence; the last fence
                q |-> <<>>, heard |-> [r \in Runs |-> 0],                \* tickets in order; 0: stale or suspended
                end |-> [r \in Runs |-> "no"]]                           \* tombstones: "left", "released"
        /\ up = TRUE /\ sent = [r \in Runs |-> {}] /\ att = [r \in Runs |-> Idle]
        /\ d = [r \in Runs |-> "ask"] /\ g = [r \in Runs |-> "idle"] /\ j = [r \in Runs |-> "no"]
        /\ still = [r \in Runs |-> {}] /\ kill = [r \in Runs |-> 0] /\ mine = [r \in Runs |-> 0]
        /\ slow = [r \in Runs |-> 0] /\ lost = {}
        /\ budget = [crash |-> Crashes, force |-> Forces, outage |-> Outages]

----------------------------------------------------------------------------- (* the store: one atomic step each *)
Places(q, r) == {i \in 1..Len(q) : q[i] = r}
Without(q, r) == LET Other(x) == x # r IN SelectSeq(q, Other)
Grant(t, r) == [t EXCEPT !.own = r, !.left = TURN, !.conf = FALSE, !.rev = FALSE, !.heard[r] = 0,
                         !.fence = @ + 1, !.of = t.fence + 1]
GrantNext(t) == LET live == {i \in 1..Len(t.q) : t.heard[t.q[i]] > 0}
                    first == CHOOSE i \in live : "order" \in Dropped \/ \A k \in live : i <= k
                    last == CHOOSE i \in live : \A k \in live : i >= k
                IN IF t.own # None \/ live = {} THEN t ELSE Grant(t, t.q[IF "order" \in Dropped THEN last ELSE first])
Arrives(t, r) == IF t.own = r \/ r \in NoWait THEN t
                 ELSE [t EXCEPT !.q = IF Places(@, r) = {} THEN Append(@, r) ELSE @, !.heard[r] = STALE]
Acquire(t, r) ==
    LET u == GrantNext(Arrives(t, r))
        v == IF u.own = None /\ r \in NoWait THEN Grant(u, r) ELSE u
    IN IF t.end[r] # "no" \/ (t.own = r /\ t.rev) THEN <<t, "no">>
       ELSE IF v.own = r THEN <<[v EXCEPT !.conf = TRUE, !.left = TTL, !.q = Without(@, r), !.heard[r] = 0], "granted">>
       ELSE <<v, "wait">>
IsOfGrant(t, r, f) == t.own = r /\ (f = 0 \/ t.of = f \/ "fence" \in Dropped)
Renew(t, r, f) == IF IsOfGrant(t, r, f) /\ ~t.rev THEN <<[t EXCEPT !.left = TTL], "ok">> ELSE <<GrantNext(t), "no">>
Leave(t, r, f) ==
    LET mark == IF IsOfGrant(t, r, f) THEN "released" ELSE IF t.end[r] = "no" THEN "left" ELSE t.end[r]
        u == [t EXCEPT !.q = Without(@, r), !.heard[r] = 0, !.end[r] = IF "spent" \in Dropped THEN @ ELSE mark]
    IN <<GrantNext(IF t.own = r THEN Free(u) ELSE u), IF mark = "released" THEN "ok" ELSE "no">>
Expire(t) == IF t.own # None /\ t.left <= 1 THEN Free(t) ELSE [t EXCEPT !.left = IF t.own = None THEN 0 ELSE @ - 1]

Serve(r, op) ==
    /\ up /\ op \in sent[r]
    /\ LET done == CASE op = "acquire" -> Acquire(s, r) [] op = "renew" -> Renew(s, r, mine[r])
                     [] op = "leave" -> Leave(s, r, mine[r])
       IN /\ s' = done[1]
          /\ att' = IF att[r].op # op \/ att[r].rep # "" THEN att
                    ELSE IF done[2] = "wait" /\ r \notin NoWait THEN [att EXCEPT ![r] = Idle]
                    ELSE [att EXCEPT ![r] = [@ EXCEPT !.rep = done[2], !.f = IF done[2] = "granted" THEN done[1].of ELSE 0]]
          \* After a leave nothing else of this token has an effect any more.
          /\ sent' = IF op = "leave" /\ Dropped \cap {"spent", "remembers"} = {} THEN [sent EXCEPT ![r] = {"leave"}] ELSE sent
    /\ UNCHANGED <<up, procs, kill, mine, slow, budget>>
Force == /\ s.own # None /\ ~s.rev /\ budget.force > 0 /\ budget' = [budget EXCEPT !.force = @ - 1]
         /\ s' = IF s.conf /\ "now" \notin Dropped THEN [s EXCEPT !.rev = TRUE]
                 ELSE GrantNext(Free([s EXCEPT !.end[s.own] = "left"]))
         /\ UNCHANGED <<up, sent, att, procs, kill, mine, slow>>
Outage == /\ IF up THEN budget.outage > 0 /\ budget' = [budget EXCEPT !.outage = @ - 1] ELSE UNCHANGED budget
          /\ up' = ~up /\ UNCHANGED <<s, sent, att, procs, kill, mine, slow>>
Forget == /\ "remembers" \in Dropped /\ s.own # None
          /\ s' = Free([s EXCEPT !.q = <<>>, !.heard = [r \in Runs |-> 0], !.end = [r \in Runs |-> "no"]])
          /\ UNCHANGED <<up, sent, att, procs, kill, mine, slow, budget>>
Jump == /\ "clock" \in Dropped /\ s.own # None /\ s' = Free(s)
        /\ UNCHANGED <<up, sent, att, procs, kill, mine, slow, budget>>

----------------------------------------------------------------------------- (* dlock *)
InDanger(r) == j[r] \in {"forked", "alive"}
Has(p, r) == IF p = "dlock" THEN d[r] \in {"ask", "run", "stop", "leave"} ELSE g[r] \in {"idle", "on", "off"}
Up(p, r) == Has(p, r) /\ p \notin still[r]
Other(p) == IF p = "dlock" THEN "guard" ELSE "dlock"
Send(r) == LET op == CASE d[r] = "ask" -> "acquire" [] d[r] \in {"run", "stop"} -> "renew" [] OTHER -> "leave"
           IN /\ Up("dlock", r) \/ (d[r] = "dead" /\ g[r] = "off" /\ Up("guard", r))
              /\ d[r] # "stop" /\ (d[r] = "run" => InDanger(r)) /\ sent' = [sent EXCEPT ![r] = @ \cup {op}]
              /\ att' = [att EXCEPT ![r] = [Idle EXCEPT !.op = op]]
              /\ UNCHANGED <<s, up, procs, kill, mine, slow, budget>>
Become(r, state) == d' = [d EXCEPT ![r] = state]
Ends(r, state) == Become(r, state) /\ g' = [g EXCEPT ![r] = "gone"]
Hear(r) ==
    LET a == att[r]
        is(op, rep) == a.op = op /\ a.rep = rep
    IN /\ a.rep # "" /\ att' = [att EXCEPT ![r] = Idle] /\ UNCHANGED <<s, up, sent, still, slow, budget>>
       /\ IF d[r] = "dead" THEN g' = [g EXCEPT ![r] = "gone"] /\ UNCHANGED <<d, j, kill, mine>>
          ELSE /\ Up("dlock", r)
               /\ CASE is("acquire", "granted") /\ g[r] = "idle" ->      \* the guard is told to start CMD
                         /\ Become(r, "run") /\ g' = [g EXCEPT ![r] = "on"] /\ j' = [j EXCEPT ![r] = "forked"]
                         /\ kill' = [kill EXCEPT ![r] = KILL - a.age] /\ mine' = [mine EXCEPT ![r] = a.f]
                    [] is("acquire", "granted") /\ g[r] # "idle" -> Become(r, "leave") /\ UNCHANGED <<g, j, kill, mine>>
                    [] a.op = "acquire" /\ a.rep # "granted" -> Ends(r, "bad") /\ UNCHANGED <<j, kill, mine>>
                    [] is("renew", "ok") -> /\ kill' = [kill EXCEPT ![r] = IF KILL - a.age > @ THEN KILL - a.age ELSE @]
                                            /\ UNCHANGED <<d, g, j, mine>>
                    [] is("renew", "no") -> Become(r, "stop") /\ UNCHANGED <<g, j, kill, mine>>
                    [] a.op = "leave" -> Ends(r, IF a.rep = "ok" THEN "good" ELSE "bad") /\ UNCHANGED <<j, kill, mine>>
Over(r) == j[r] \in {"dead", "escaped"}
Kill(r) == j' = [j EXCEPT ![r] = "dead"] /\ still' = [still EXCEPT ![r] = {}]
Decide(r) == /\ Up("dlock", r) /\ UNCHANGED <<s, up, kill, mine, slow, budget>>
             /\ sent' = sent \/ (d[r] = "stop" /\ Over(r) /\ sent' = [sent EXCEPT ![r] = @ \cup {"leave"}])
             /\ \/ d[r] = "ask" /\ Become(r, "leave") /\ UNCHANGED <<g, j, still>>                     \* gives up
                \/ d[r] = "run" /\ Over(r) /\ Become(r, "leave") /\ UNCHANGED <<g, j, still>>          \* gives back
                \/ d[r] = "stop" /\ Over(r) /\ Ends(r, "bad") /\ UNCHANGED <<j, still>>               \* "not yours"
                \/ /\ d[r] \in {"run", "stop"} /\ j[r] \in {"forked", "alive"}                         \* adopts the job
                   /\ g[r] = "dead" \/ (kill[r] = 0 /\ j[r] = "alive")
                   /\ g' = [g EXCEPT ![r] = "dead"] /\ Kill(r) /\ UNCHANGED d
             /\ att' = IF d' = d THEN att ELSE [att EXCEPT ![r] = Idle]

----------------------------------------------------------------------------- (* the guard, and the job *)
Guard(r) == /\ Up("guard", r) /\ g[r] \in {"idle", "on"} /\ g' = [g EXCEPT ![r] = "off"]
            /\ \/ d[r] = "dead" \/ (g[r] = "on" /\ (kill[r] = 0 \/ d[r] = "stop")) \/ Over(r)
            /\ IF InDanger(r) THEN Kill(r) ELSE UNCHANGED <<j, still>>
            /\ UNCHANGED <<s, up, sent, att, d, kill, mine, slow, budget>>
\* Right before exec the new process looks whether TERM is due.
Job(r) == /\ \/ j[r] = "forked" /\ j' = [j EXCEPT ![r] = IF kill[r] > 0 \/ "look" \in Dropped THEN "alive" ELSE "dead"] /\ UNCHANGED still
             \/ j[r] \in {"alive", "escaped"} /\ Kill(r)
             \/ "below" \in Dropped /\ j[r] = "alive" /\ j' = [j EXCEPT ![r] = "escaped"] /\ UNCHANGED still
          /\ UNCHANGED <<s, up, sent, att, d, g, kill, mine, slow, budget>>

----------------------------------------------------------------------------- (* trouble, and time *)
Spares(p, r) == InDanger(r) => Up(Other(p), r) \/ "awake" \in Dropped
\* Every process may dawdle without a step for it. A pause matters only where something is due: there it is a step.
Pause(r) == /\ j[r] = "alive" /\ UNCHANGED <<s, up, sent, att, d, g, j, kill, mine, slow, budget>>
            /\ \E p \in {"dlock", "guard"} :
                  \/ kill[r] = 0 /\ Up(p, r) /\ Spares(p, r) /\ still' = [still EXCEPT ![r] = @ \cup {p}]
                  \/ p \in still[r] /\ still' = [still EXCEPT ![r] = @ \ {p}]
Crash(r) == /\ budget.crash > 0 /\ budget' = [budget EXCEPT !.crash = @ - 1]
            /\ \/ /\ Has("dlock", r) /\ Spares("dlock", r) /\ Become(r, "dead") /\ UNCHANGED <<g, j, still>>
               \/ /\ Has("guard", r) /\ Spares("guard", r) /\ g' = [g EXCEPT ![r] = "dead"] /\ UNCHANGED <<d, j, still>>
               \/ /\ Has("dlock", r) \/ Has("guard", r) \/ j[r] = "escaped"                            \* the machine
                  /\ Become(r, "dead") /\ g' = [g EXCEPT ![r] = "dead"] /\ Kill(r)
            /\ att' = [att EXCEPT ![r] = Idle] /\ UNCHANGED <<s, up, sent, kill, mine, slow>>
Counts(r) == (kill[r] > 0 /\ InDanger(r)) \/ att[r].op \in {"acquire", "renew"}
IsDue(r) == j[r] = "alive" /\ kill[r] = 0 /\ "kills" \notin Dropped /\ (Up("dlock", r) \/ Up("guard", r))
Tick == \E missed \in SUBSET {r \in Runs : Counts(r) /\ ((Slips > 0 /\ slow[r] = 0) \/ "ticks" \in Dropped)} :
    /\ \A r \in Runs \ missed : ~IsDue(r)                 \* who must end a job, and can, has done so
    /\ s' = LET t == Expire(s) IN [t EXCEPT !.heard = [r \in Runs |-> IF up /\ @[r] > 0 THEN @[r] - 1 ELSE @[r]]]
    /\ kill' = [r \in Runs |-> IF ~InDanger(r) THEN 0 ELSE IF r \in missed \/ kill[r] = 0 THEN kill[r] ELSE kill[r] - 1]
    /\ att' = [r \in Runs |-> IF r \in missed \/ att[r].op \in {"", "leave"} THEN att[r]
                              ELSE IF att[r].age + 1 = KILL THEN Idle ELSE [att[r] EXCEPT !.age = @ + 1]]
    /\ slow' = [r \in Runs |-> IF "ticks" \in Dropped \/ ~Counts(r) THEN 0 ELSE IF r \in missed THEN TTL - 1
                               ELSE IF slow[r] > 0 THEN slow[r] - 1 ELSE 0]
    /\ UNCHANGED <<up, sent, procs, mine, budget>>
Note == lost' = {r \in lost : d'[r] \in {"run", "leave", "good"}}
                \cup {r \in Runs : j'[r] = "alive" /\ d'[r] = "run" /\ (s'.own # r \/ s'.of # mine'[r])}
Next == /\ \/ \E r \in Runs : \/ \E op \in {"acquire", "renew", "leave"} : Serve(r, op)
                              \/ Send(r) \/ Hear(r) \/ Decide(r) \/ Guard(r) \/ Job(r) \/ Pause(r) \/ Crash(r)
           \/ Force \/ Outage \/ Forget \/ Jump \/ Tick
        /\ Note
Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------- (* what is promised *)
Alive(r) == j[r] \in {"alive", "escaped"}
Exclusion == \A r, p \in Runs : r # p => ~(Alive(r) /\ Alive(p))                                       \* I1: one job
Covered == \A r \in Runs : j[r] = "alive" => s.own = r /\ s.of = mine[r]                               \* I6: dead in time
OwnOnly == [][\A r \in Runs : s.own = r /\ s'.own # r =>                                               \* I2
                  s.left = 1 \/ s'.end[r] # "no" \/ Dropped \cap {"remembers", "clock"} # {}]_vars
Refused == \A r \in Runs : s.end[r] # "no" \/ d[r] = "good" => s.own # r /\ s.heard[r] = 0                         \* I4
StartsOnce == [][\A r \in Runs : j'[r] = "alive" /\ j[r] # "alive" => j[r] = "forked" /\ d[r] # "good"]_vars  \* I4
Fenced == \A r \in Runs : s.own # None /\ s.own # r /\ Alive(r) => mine[r] < s.of                      \* I5
Grows == [][s'.of # s.of /\ s'.of # 0 => s'.of > s.fence]_vars                                         \* I5
Renewed == [][\A r \in Runs : kill'[r] > kill[r] => r \notin lost]_vars                                \* I6: TERM is final
Reported == \A r \in Runs : d[r] = "good" => r \notin lost                                             \* I6: never with 0
Order == [][\A r, p \in Runs :                                                                        \* I9
    r # p /\ s'.own = r /\ s'.of # s.of /\ s'.end[p] = "no" /\ s.heard[p] > 0 =>
        \A i \in Places(s.q, p) : \E k \in Places(s.q, r) : k < i]_vars
Bound == s.fence <= Grants
Brief == Bound /\ \A r \in Runs : j[r] # "alive" /\ "renew" \notin sent[r]   \* for models of the queue alone
Same == Permutations(Runs \ NoWait)
\* What must be reachable, or the model shows nothing.
NoHandOver == ~\E r, p \in Runs : d[r] = "good" /\ j[p] = "alive"
=============================================================================
