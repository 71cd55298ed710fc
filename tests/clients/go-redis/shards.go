package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// unexplained are errors that no fault of the cluster explains.
var unexplained = []string{
	"ERR", "READONLY", "WRONGTYPE", "UNBLOCKED", "NOAUTH", "EXECABORT", "CROSSSLOT",
}

// shards uses the cluster client while slots move and primaries change. It prints its counts, and fails if a
// read has another value than the last one that was acknowledged, or one that was sent without a reply; and at
// an error that no fault explains.
func shards(port string, seconds float64) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + port}})
	defer client.Close()
	counts, lock := map[string]int{}, sync.Mutex{}
	count := func(what string) {
		lock.Lock()
		defer lock.Unlock()
		counts[what]++
	}
	fails := func(err error) bool {
		if err == nil || errors.Is(err, redis.Nil) {
			return false
		}
		for _, code := range unexplained {
			check(!strings.HasPrefix(err.Error(), code), "an error that no fault explains", err)
		}
		what, _, _ := strings.Cut(err.Error(), " ")
		count(what)
		return true
	}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	work := func(worker int) {
		last, unknown := map[int]string{}, map[string]bool{}
		for value := 1; time.Now().Before(end); value++ {
			key := value % 20
			name := fmt.Sprintf("key:%d:%d", worker, key)
			found, err := client.Get(ctx, name).Result()
			if fails(err) {
				continue
			}
			// Values differ between keys: key = value mod 20.
			check(found == last[key] || unknown[found], name, found, last[key])
			last[key] = found
			text := strconv.Itoa(value)
			unknown[text] = true
			if fails(client.Set(ctx, name, text, 0).Err()) {
				continue
			}
			delete(unknown, text)
			last[key] = text
			count("done")
		}
	}
	var workers sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		workers.Add(1)
		go func(worker int) {
			defer workers.Done()
			work(worker)
		}(worker)
	}
	workers.Wait()
	fmt.Println(counts)
	check(counts["done"] > 0, "nothing was done")
}
