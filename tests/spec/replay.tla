------------------------------- MODULE replay -------------------------------
(* Could the store of dlock.tla have answered as a recorded history says? replay.py writes Keys: for each key the events of   *)
(* its runs, in order. TLC looks for an order of steps of the store, each as dlock.tla allows it, that explains them all.     *)
EXTENDS dlock, recorded              \* Keys
Nobody == 0                          \* in place of None: runs are numbers here
VARIABLES at,                        \* the key, and the next event
          asked, had, going, may,    \* runs that have asked, were granted the lock, give it back, may have lost it
          seen                       \* whether the store was as the open look says
unused == <<up, sent, att, d, g, j, still, kill, mine, slow, lost, budget>>
known == <<asked, had, going, may>>
Key == Keys[at[1]]
Events == Key.events
Fence == Key.fences                  \* of each run; 0: no job of it was seen
Fresh(k) == LET all(x) == [r \in 1..Len(Keys[k].fences) |-> x]
            IN [own |-> None, left |-> 0, conf |-> FALSE, rev |-> FALSE, of |-> 0, fence |-> 0, q |-> <<>>,
                heard |-> all(0), end |-> all("no")]
Known(a, h, g1, m) == asked' = a /\ had' = h /\ going' = g1 /\ may' = m
InitReplay == /\ at \in {<<k, 1>> : k \in 1..Len(Keys)} /\ s = Fresh(at[1]) /\ asked = {} /\ had = {} /\ going = {} /\ may = {} /\ seen = FALSE
              /\ up = 0 /\ sent = 0 /\ att = 0 /\ d = 0 /\ g = 0 /\ j = 0 /\ still = 0 /\ kill = 0 /\ mine = 0 /\ slow = 0
              /\ lost = 0 /\ budget = 0
\* What the store may do by itself, or for a request that is under way. Fences only grow: they tell which run is next.
IsNext(r) == Cardinality(had) < Len(Key.order) /\ r = Key.order[Cardinality(had) + 1]
Waiting == SelectSeq(s.q, LAMBDA r : s.heard[r] > 0)
IsFirst(r) == Waiting # <<>> /\ r = Head(Waiting)
Quiet == [s EXCEPT !.q = <<>>]       \* what a step would grant next is a step of its own here
Step == /\ \/ /\ s.own = None
              /\ \E r \in asked \ had :
                    \/ /\ IsNext(r) /\ Fence[r] > s.fence                       \* Acquire, under the recorded fence
                       /\ LET done == Acquire([s EXCEPT !.fence = Fence[r] - 1], r)
                          IN done[2] = "granted" /\ s' = done[1] /\ had' = had \cup {r}
                    \/ /\ IsFirst(r) /\ Fence[r] = 0 /\ UNCHANGED had           \* it gives up
                       /\ s' = [Leave(Quiet, r, 0)[1] EXCEPT !.q = Without(s.q, r)]
                    \/ IsFirst(r) /\ r \in Key.silent /\ s' = [s EXCEPT !.heard[r] = 0] /\ UNCHANGED had
           \* A hold ends. What the same step grants next is another step here.
           \/ /\ s.own \in going /\ UNCHANGED had
              /\ s' = [Leave(Quiet, s.own, s.of)[1] EXCEPT !.q = s.q]
           \/ /\ s.own \in may /\ s' = Expire([s EXCEPT !.left = 1]) /\ UNCHANGED had
        /\ UNCHANGED <<at, asked, going, may, seen>>
\* Runs that are seen waiting have joined in that order.
Joins(t, r) == IF t.heard[r] > 0 THEN t ELSE Arrives(t, r)
RECURSIVE Join(_, _)
Join(t, w) == IF w = <<>> THEN t ELSE Join(Joins(t, Head(w)), Tail(w))
Look(fence, w) == LET t == Join(s, w)
                  IN /\ ~seen /\ seen' = TRUE /\ s' = t /\ UNCHANGED <<at, known>>
                     /\ s.of = fence /\ \A i \in 1..Len(w) : w[i] \in asked \ had
                     /\ \A i, k \in 1..Len(w) : i < k => \A a \in Places(t.q, w[i]), b \in Places(t.q, w[k]) : a < b
Take(what, r) ==
    /\ at' = [at EXCEPT ![2] = @ + 1] /\ UNCHANGED s
    /\ seen' = IF what = "look" THEN FALSE ELSE seen
    /\ Known(IF what = "ask" THEN asked \cup {r} ELSE asked, had, IF what = "go" THEN going \cup {r} ELSE going,
             IF what = "may" THEN may \cup {r} ELSE may)
    /\ CASE what = "got" -> r \in had /\ (s.own = r \/ r \in may)                 \* its job is seen
         [] what = "gone" -> s.end[r] = "released"                               \* its release has succeeded
         [] what = "look" -> seen
         [] OTHER -> TRUE
NextReplay == /\ IF at[2] > Len(Events) THEN PrintT(<<"explained", at[1]>>) /\ FALSE
                 ELSE \/ Step \/ Take(Events[at[2]][1], Events[at[2]][2])
                      \/ /\ Key.open # <<>> /\ Key.open[at[2]] > 0                   \* a look has begun
                         /\ LET e == Events[Key.open[at[2]]] IN Look(e[2], e[3])
              /\ UNCHANGED unused
SpecReplay == InitReplay /\ [][NextReplay]_<<vars, at, known, seen>>
=============================================================================
