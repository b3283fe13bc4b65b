-- request.lua: asks the hold with this fence to end. It hears of it by its next renewal.
-- ARGV: fence, who asks (JSON).
-- Replies: {'asked', …} · {'gone', …}.
-- Why atomic: it acts on the hold that was shown, not on one that came in between.

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
