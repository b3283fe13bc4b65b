-- ends.lua: how the last holds of a lock ended, for one who waits for it. Writes nothing. An end that no operation has
-- noticed yet is told as if it had been.
-- Reply: {'seen', now us, {log…}}: as in inspect.lua, which tells of all who wait besides.

return { 'seen', int(us), (look(named()[1], LOG_KEPT)) }
