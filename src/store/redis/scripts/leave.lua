-- leave.lua: gives back the hold or the place in the queue, and marks the token spent (law: Record::leave).
-- ARGV: token, 'ran' or 'not-run', how the job ended (JSON or '').
-- Replies: {'released', now us, cooling ms} · {'dequeued', now us} · {'already', now us} · {'not-held', now us}.
-- Why atomic: compare and delete; the next waiter is granted the lock in the same step, so it is never idle; and the
-- spent mark refuses an acquire that is still on its way (I4).

local token, ran, job = ARGV[1], ARGV[2] == 'ran', ARGV[3]
write_first()
local spent = redis.call('GET', spent_key(token))
if spent then return { spent == '1' and 'already' or 'not-held', int(us) } end

load(token)
expire()
-- Who holds and has confirmed waits no more.
local queued = not (is_held_by(token) and hold.confirmed) and redis.call('DEL', waiter_key(token)) == 1
local was_head = queued and redis.call('ZRANK', QUEUE, token) == 0
if queued then redis.call('ZREM', QUEUE, token) end
local answer, cooling = 'not-held', 0
if is_held_by(token) then
  local due = hold.cool
  if ran then
    finish('released', job)
    cool_or_free(due)
  else
    redis.call('DEL', HOLD)
    hold = nil
    free()
  end
  answer = 'released'
  if lock == 'cooling' then cooling = left(lock_until) end
elseif is_revoked_from(token) then
  redis.call('DEL', HOLD)
  hold = nil
  free()
  answer = 'released'
elseif queued then
  answer = 'dequeued'
end
redis.call('SET', spent_key(token), answer == 'released' and '1' or '0', 'PX', SPENT_KEPT)
local idle = lock == 'free'
serve(token)
if not idle and (was_head or cooling > 0) then wake_head() end
return { answer, int(us), int(cooling) }
