package main

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

const counters = 8

// failover runs go-redis with its default settings during a FAILOVER. Goroutines count up through one client,
// which knows the address of the first server alone. The command changes the roles. The client follows the
// servers' messages (CLIENT MAINT_NOTIFICATIONS): no command fails, and none is lost or done twice.
func failover(port string, command string) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	defer client.Close()
	var (
		counts [counters]int64
		isOver int32
		group  sync.WaitGroup
		failed = make(chan error, 1000)
	)
	count := func(number int) {
		defer group.Done()
		for atomic.LoadInt32(&isOver) == 0 {
			count, err := client.Incr(ctx, fmt.Sprint("count:", number)).Result()
			if err == nil {
				atomic.StoreInt64(&counts[number], count)
				continue
			}
			select {
			case failed <- err:
			default:
			}
		}
	}
	for number := range counts {
		group.Add(1)
		go count(number)
	}
	least := func(than [counters]int64) bool {
		for number := range counts {
			if atomic.LoadInt64(&counts[number]) <= than[number] {
				return false
			}
		}
		return true
	}
	await("goroutines begin", func() bool { return least([counters]int64{}) })
	output, err := exec.Command(command).CombinedOutput()
	check(err == nil, "the roles change", string(output))
	var wanted [counters]int64
	for number := range counts {
		wanted[number] = atomic.LoadInt64(&counts[number]) + 20
	}
	await("goroutines go on at the new primary", func() bool { return least(wanted) })
	atomic.StoreInt32(&isOver, 1)
	group.Wait()
	close(failed)
	for err := range failed {
		check(false, "a command fails", err)
	}
	primary := redis.NewClient(&redis.Options{Addr: "127.0.0.2:" + port})
	defer primary.Close()
	for number := range counts {
		stored := must(primary.Get(ctx, fmt.Sprint("count:", number)).Int64())
		check(stored == counts[number], "increments and replies", stored, counts[number])
	}
}
