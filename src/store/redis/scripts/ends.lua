-- ends.lua: how the last holds of a lock ended, for a waiter. Writes nothing. Ends that no
-- operation has recorded yet are included.
-- Reply: {'seen', now us, {log…}}, as in inspect.lua, which also lists the waiters.

return { 'seen', int(us), (look(named()[1], LOG_KEPT)) }
