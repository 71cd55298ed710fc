package main

import (
	"fmt"
	"sort"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// cluster checks the cluster client against a node of a cluster that owns all slots.
func cluster(port string, protocol int) {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:" + port}, Protocol: protocol,
	})
	defer client.Close()
	var keys []string
	for number := 0; number < 200; number++ {
		keys = append(keys, "key:"+strconv.Itoa(number))
	}
	for _, key := range keys {
		check(must(client.Set(ctx, key, key, 0).Result()) == "OK", "SET", key)
		check(must(client.Get(ctx, key).Result()) == key, "GET", key)
	}
	replies := must(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			pipe.Append(ctx, key, "!")
		}
		return nil
	}))
	for at, reply := range replies {
		check(reply.(*redis.IntCmd).Val() == int64(len(keys[at])+1), "a pipeline", reply)
	}
	check(must(client.DBSize(ctx).Result()) == int64(len(keys)), "DBSIZE of all nodes")
	script := redis.NewScript("return redis.call('get', KEYS[1])")
	check(must(script.Run(ctx, client, []string{"key:7"}).Text()) == "key:7!", "a script")
	transaction := must(client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "{tag}1", "a", 0)
		pipe.Get(ctx, "{tag}1")
		return nil
	}))
	check(transaction[1].(*redis.StringCmd).Val() == "a", "a transaction", transaction)
	listener := client.SSubscribe(ctx, "{tag}channel")
	must(listener.Receive(ctx))
	check(must(client.SPublish(ctx, "{tag}channel", "hello").Result()) == 1, "SPUBLISH")
	check(must(listener.ReceiveMessage(ctx)).Payload == "hello", "a message")
	listener.Close()
	slots := must(client.ClusterSlots(ctx).Result())
	ends := []int{}
	for _, slot := range slots {
		ends = append(ends, slot.End)
	}
	sort.Ints(ends)
	check(ends[len(ends)-1] == 16383, "the last slot", fmt.Sprint(ends))
	for _, key := range append(keys, "{tag}1") {
		must(client.Del(ctx, key).Result())
	}
}
