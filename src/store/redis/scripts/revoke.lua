-- revoke.lua: takes the lock away from whoever holds it (law: Record::revoke).
-- ARGV: 'safe' or 'now', who does it (JSON).
-- Replies: {what was there, now us, left ms, blocker as it was…}, what being 'free', 'hold', 'cooling', 'revoked',
-- 'foreign' (left alone) or 'foreign-deleted'.
-- Why atomic: it acts on the hold that it shows, not on one that came in between.

local now, by = ARGV[1] == 'now', ARGV[2]
write_first()
load()
expire()
local was, remains, answer = blocker(), 0, lock

local function spend(token) redis.call('SET', spent_key(token), '0', 'PX', SPENT_KEPT) end

if lock == 'cooling' then
  free()
elseif lock == 'held' and ms >= hold['until'] then
  finish('expired')
  free()
  answer = 'cooling'
elseif lock == 'held' then
  answer = 'hold'
  local held = hold
  finish('forced', nil, by)
  -- Under a grant that was never confirmed no job runs, so there is nothing to wait for.
  if now or not held.confirmed then
    spend(held.token)
    free()
  else
    hold = held
    hold.forced = true
    put('dlock/revoked:' .. int(hold['until']), 'revoked', hold['until'])
    save_hold()
    remains = left(lock_until)
    wake_head()
  end
elseif lock == 'revoked' then
  remains = left(lock_until)
  if now then
    remains = 0
    if hold then
      spend(hold.token)
      redis.call('DEL', HOLD)
      hold = nil
    end
    free()
  end
elseif lock == 'foreign' and now and foreign_type == 'string' then
  free()
  answer = 'foreign-deleted'
end
serve(nil)
local r = { answer, int(us), int(remains) }
for _, field in ipairs(was) do r[#r + 1] = field end
return r
