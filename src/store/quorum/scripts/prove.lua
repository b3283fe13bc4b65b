-- prove.lua: whether the token has this master. Writes nothing.
-- ARGV: token, longest lease ms.
-- Replies: {'held', …, fence (0: not told yet), lease ms} · {'not-held', …}, and those of
--        acquire.lua for a master that does not count.
-- Why atomic: lock key and record are of one moment.

local token = ARGV[1]
local why = unfit(tonumber(ARGV[2]))
if why then return why end
local lock = named(token)[1]
local hold = is_held_by(lock, token) and hold_of(lock, token)
if hold and ms < hold['until'] then return answer('held', agreed(hold), int(left(hold['until']))) end
return answer('not-held')
