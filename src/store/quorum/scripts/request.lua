-- request.lua: asks the hold with this fence to end. Its holder learns of it by its next renewal.
-- ARGV: fence, operator (JSON).
-- Replies: {'asked', …} · {'gone', …}.
-- Why atomic: it acts on the hold that was shown, not on a later one.

write_first()
local lock = named()[1]
expire(lock)
local hold = lock.kind == 'exclusive' and hold_of(lock, lock.token)
if not hold or ms >= hold['until'] or hold.fence ~= ARGV[1] then return answer('gone') end
if hold.asked == '' then
  hold.asked = ARGV[2]
  save(lock, lock.token, hold)
end
return answer('asked')
