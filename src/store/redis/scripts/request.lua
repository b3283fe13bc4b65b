-- request.lua: asks a hold to end, and wakes whoever has it (law: LockTable::request).
-- ARGV: fence, who asks (JSON).
-- Replies: {'asked', now us} · {'gone', now us}.
-- Why atomic: it acts on the hold that was shown, not on one that came in between.

local fence, by, answer = ARGV[1], ARGV[2], 'gone'
write_first()
local lock = named()[1]
expire(lock)
if lock.kind == 'exclusive' or is_many(lock) then
  for _, one in ipairs(all_holds(lock)) do
    if one.hold.phase == 'held' and one.hold.fence == fence then
      answer = 'asked'
      if one.hold.asked == '' then
        one.hold.asked = by
        save(lock, one.token, one.hold)
      end
      wake(lock.rest, one.token, 'holder')
    end
  end
end
serve({ lock.rest })
tell()
return { answer, int(us) }
