-------------------------------- MODULE once --------------------------------
(* --once-per PERIOD, over a lock that dlock.tla has checked: of the runs that come in one tick one succeeds, and no tick is *)
(* lost. Order in the queue is not assumed: places are lost in outages. Times are ticks of true time.                        *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS First, Second,  \* the runs of two ticks of a timetable
          GAP, LATE,      \* from one tick to the next; how late a machine may be
          PERIOD, BACK,   \* of --once-per; by how much the store's clock may be set back, once
          END, Dropped    \* when the model ends; rules that are left out
Runs == First \cup Second
VARIABLES time, back,     \* true time; how far the store's clock is set back
          st, tried,      \* each run, and when it first tried to reach the store
          came,           \* when it arrived by the store's clock, as its first answer tells it; 0: no answer yet
          own, since,     \* the holder; when it was granted the lock, by the store's clock and in true time
          success,        \* the success on record: arrived, granted; granted = 0: none
          wins            \* the runs that have succeeded, with the true time of their grants
vars == <<time, back, st, tried, came, own, since, success, wins>>
None == "none"
T0 == BACK + 1            \* of the first tick, so that no time is below 1
Due(r) == IF r \in First THEN T0 ELSE T0 + GAP
Now == time - back
Max(a, b) == IF a > b THEN a ELSE b
Init == /\ time = T0 /\ back = 0 /\ st = [r \in Runs |-> "off"] /\ tried = [r \in Runs |-> 0] /\ came = [r \in Runs |-> 0]
        /\ own = None /\ since = <<0, 0>> /\ success = [came |-> 0, granted |-> 0] /\ wins = {}
Done(c) == /\ success.granted > 0 /\ success.granted < Now + PERIOD
           /\ c < IF "arrival" \in Dropped THEN success.granted + PERIOD
                  ELSE Max(success.came + PERIOD, success.granted)
Try(r) == /\ st[r] = "off" /\ time \in Due(r)..(Due(r) + LATE)
          /\ st' = [st EXCEPT ![r] = "asks"] /\ tried' = [tried EXCEPT ![r] = time]
          /\ UNCHANGED <<time, back, came, own, since, success, wins>>
\* The store answers: the run is skipped, granted the lock, or has a place that tells when it came.
Ask(r) == LET c == IF came[r] > 0 /\ "place" \notin Dropped THEN came[r]
                   ELSE IF "place" \in Dropped THEN Now ELSE tried[r] - back
          IN /\ st[r] = "asks" /\ came' = [came EXCEPT ![r] = c]
             /\ IF Done(c) THEN st' = [st EXCEPT ![r] = "skipped"] /\ UNCHANGED <<own, since>>
                ELSE IF own = None THEN st' = [st EXCEPT ![r] = "runs"] /\ own' = r /\ since' = <<Now, time>>
                ELSE UNCHANGED <<st, own, since>>
             /\ UNCHANGED <<time, back, tried, success, wins>>
LosePlace(r) == /\ st[r] = "asks" /\ came[r] > 0 /\ came' = [came EXCEPT ![r] = 0]
                /\ UNCHANGED <<time, back, st, tried, own, since, success, wins>>
End(r, is_success) ==
    /\ own = r /\ own' = None /\ st' = [st EXCEPT ![r] = "over"] /\ UNCHANGED <<time, back, tried, came, since>>
    /\ LET keeps == success.granted > 0 /\ success.granted <= Now       \* else the clock was set back since
           new == [came |-> IF keeps THEN Max(success.came, came[r]) ELSE came[r],
                   granted |-> IF keeps THEN Max(success.granted, since[1]) ELSE since[1]]
       IN IF ~is_success THEN UNCHANGED <<success, wins>>
          ELSE success' = new /\ wins' = wins \cup {<<r, since[2]>>}
SetBack == back = 0 /\ BACK > 0 /\ back' = BACK /\ UNCHANGED <<time, st, tried, came, own, since, success, wins>>
Forget == /\ "remembers" \in Dropped /\ success.granted > 0 /\ success' = [came |-> 0, granted |-> 0]
          /\ UNCHANGED <<time, back, st, tried, came, own, since, wins>>
Pass == /\ time < END /\ time' = time + 1 /\ UNCHANGED <<back, st, tried, came, own, since, success, wins>>
        /\ \A r \in Runs : st[r] = "off" => time # Due(r) + LATE
Next == SetBack \/ Forget \/ Pass
        \/ \E r \in Runs : Try(r) \/ Ask(r) \/ LosePlace(r) \/ End(r, TRUE) \/ End(r, FALSE)
Spec == Init /\ [][Next]_vars

\* No tick succeeds twice.
Once == \A a, b \in wins : a[1] # b[1] => Due(a[1]) # Due(b[1])
\* None is lost: for a run that was skipped there is a success of its tick, or one that was granted after it came.
Kept == \A r \in Runs : st[r] = "skipped" => \E w \in wins : Due(w[1]) = Due(r) \/ w[2] + BACK >= tried[r]
Same == Permutations(First) \cup Permutations(Second)
\* Must be reachable: each tick has a success; and one catches up on a tick without one.
NoTwo == Cardinality(wins) < 2
NoCatch == ~\E r \in Runs : st[r] = "skipped" /\ \A w \in wins : Due(w[1]) # Due(r)
=============================================================================
