-- request.lua: asks the hold with this fence to end. It hears of it by its next renewal.
-- ARGV: fence, who asks (JSON).
-- Replies: {'asked', …} · {'gone', …}.
-- Why atomic: it acts on the hold that was shown, not on one that came in between.

write_first()
load()
expire()
if lock ~= 'held' or ms >= hold['until'] or hold.fence ~= ARGV[1] then return answer('gone') end
if hold.asked == '' then
  hold.asked = ARGV[2]
  save_hold()
end
return answer('asked')
