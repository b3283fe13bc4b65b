-- prove.lua: whether the token has this master. Writes nothing.
-- Argument: token.
-- Replies: held {fence (none: not told yet), lease (ms), asked (who asked it to end)} · not-held, and those of acquire.lua for a
--        master that does not count.
-- Why atomic: lock key and record are of one moment.

local token = arg.token
local why = uncounted()
if why then return why end
local lock = named(token)[1]
local hold = is_held_by(lock, token) and hold_of(lock, token)
if hold and ms < hold['until'] then 
  return answer('held', { fence = agreed(hold), lease = left(hold['until']), asked = hold.asked })
end
return answer('not-held')
