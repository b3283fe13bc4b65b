-- ends.lua: how the last holds of a lock ended, for a waiter. Writes nothing. Ends that no
-- operation has recorded yet are included.
-- Argument: nothing.
-- Reply: seen {log}, as in inspect.lua, which also lists the waiters.

return answer('seen', { log = list((look(named()[1], LOG_KEPT))) })
