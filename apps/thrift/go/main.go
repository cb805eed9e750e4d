// A client and a server of idl/demo.thrift with Apache Thrift's Go library.
//
// Usage: peer client PORT binary|compact plain|multiplexed, or peer server binary|compact. The client makes
// calls on several connections concurrently, and prints the numbers of expected, answered, mismatched and
// lost calls. The server prints its port, serves the service with and without its name, and exits when its
// standard input is closed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"peer/demo"
)

const (
	connections = 8
	rounds      = 25
)

var configuration = &thrift.TConfiguration{SocketTimeout: 30 * time.Second, ConnectTimeout: 30 * time.Second}

func factory(protocol string) thrift.TProtocolFactory {
	if protocol == "compact" {
		return thrift.NewTCompactProtocolFactoryConf(configuration)
	}
	return thrift.NewTBinaryProtocolFactoryConf(configuration)
}

var expected, answered, mismatched atomic.Int64

func check(what string, answer, right any, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "lost: %s: %v\n", what, err)
		return
	}
	answered.Add(1)
	if !reflect.DeepEqual(answer, right) {
		mismatched.Add(1)
		fmt.Fprintf(os.Stderr, "mismatched: %s: %v, not %v\n", what, answer, right)
	}
}

func value(number int64) *demo.OneOfEach {
	return &demo.OneOfEach{
		ImTrue: true, ABite: 127, Integer16: 27000, Integer32: 1 << 24, Integer64: number,
		DoublePrecision: math.Pi, SomeCharacters: "JSON THIS! \"\x01", ZomgUnicode: "\u00d7\n\a\t",
		Base64: []byte{0, 1, 255}, ByteList: []int8{1, 2, -3}, I16List: []int16{1, 2, -3},
		I64List: []int64{1, 2, number},
	}
}

func call(address, protocol string, multiplexed bool, first int64) {
	expected.Add(7 * rounds)
	ctx := context.Background()
	transport := thrift.NewTFramedTransportConf(thrift.NewTSocketConf(address, configuration), configuration)
	if err := transport.Open(); err != nil {
		fmt.Fprintf(os.Stderr, "lost: %v\n", err)
		return
	}
	defer transport.Close()
	written := factory(protocol).GetProtocol(transport)
	named := written
	if multiplexed {
		named = thrift.NewTMultiplexedProtocol(written, "Demo")
	}
	client := demo.NewDemoClient(thrift.NewTStandardClient(written, named))
	for n := first; n < first+rounds; n++ {
		sum, err := client.Add(ctx, n, -1)
		check("add", sum, n-1, err)
		text := fmt.Sprintf("text %d \u00d7", n)
		echo, err := client.Echo(ctx, text)
		check("echo", echo, text, err)
		later, err := client.Later(ctx, text, 1)
		check("later", later, text, err)
		each, err := client.Each(ctx, value(n))
		check("each", each, value(n), err)
		counts, err := client.Count(ctx, []string{"a", "b", "a"})
		check("count", counts, map[string]int32{"a": 2, "b": 1}, err)
		_, err = client.Count(ctx, []string{""})
		var forbidden *demo.Forbidden
		check("forbidden", errors.As(err, &forbidden), true, nil)
		_, err = client.Add(ctx, math.MaxInt64, 1)
		var refused thrift.TApplicationException
		check("refused", errors.As(err, &refused) && refused.TypeId() == thrift.INTERNAL_ERROR, true, nil)
		if err := client.Note(ctx, "not answered"); err != nil {
			fmt.Fprintf(os.Stderr, "note: %v\n", err)
			mismatched.Add(1)
		}
	}
}

func callAll(address, protocol string, multiplexed bool) {
	var group sync.WaitGroup
	for n := 0; n < connections; n++ {
		group.Add(1)
		go func(first int64) {
			defer group.Done()
			call(address, protocol, multiplexed, first)
		}(int64(n * rounds))
	}
	group.Wait()
	lost := expected.Load() - answered.Load()
	fmt.Printf("expected %d, answered %d, mismatched %d, lost %d\n",
		expected.Load(), answered.Load(), mismatched.Load(), lost)
	if lost != 0 || mismatched.Load() != 0 {
		os.Exit(1)
	}
}

type service struct{ notes atomic.Int64 }

func (*service) Ping(context.Context) error                                         { return nil }
func (*service) Add(_ context.Context, left, right int64) (int64, error)            { return left + right, nil }
func (*service) Echo(_ context.Context, text string) (string, error)                { return text, nil }
func (*service) Each(_ context.Context, v *demo.OneOfEach) (*demo.OneOfEach, error) { return v, nil }
func (s *service) Note(context.Context, string) error                               { s.notes.Add(1); return nil }
func (s *service) Notes(context.Context) (int64, error)                             { return s.notes.Load(), nil }

func (*service) Later(_ context.Context, text string, millis int32) (string, error) {
	time.Sleep(time.Duration(millis) * time.Millisecond)
	return text, nil
}

func (*service) Sum(_ context.Context, values []int64) (sum int64, _ error) {
	for _, value := range values {
		sum += value
	}
	return sum, nil
}

func (*service) Count(_ context.Context, words []string) (map[string]int32, error) {
	counts := map[string]int32{}
	for _, word := range words {
		if word == "" {
			return nil, &demo.Forbidden{}
		}
		counts[word]++
	}
	return counts, nil
}

func serve(protocol string) error {
	socket, err := thrift.NewTServerSocket("127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := socket.Listen(); err != nil {
		return err
	}
	named := thrift.NewTMultiplexedProcessor()
	processor := demo.NewDemoProcessor(&service{})
	named.RegisterProcessor("Demo", processor)
	named.RegisterDefault(processor)
	framed := thrift.NewTFramedTransportFactoryConf(thrift.NewTTransportFactory(), configuration)
	go thrift.NewTSimpleServer4(named, socket, framed, factory(protocol)).Serve()
	fmt.Println(socket.Addr().(*net.TCPAddr).Port)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func main() {
	if arguments := os.Args[1:]; len(arguments) == 4 && arguments[0] == "client" {
		callAll("127.0.0.1:"+arguments[1], arguments[2], arguments[3] == "multiplexed")
	} else if len(arguments) == 2 && arguments[0] == "server" {
		if err := serve(arguments[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	} else {
		fmt.Fprintln(os.Stderr, "usage: peer client PORT binary|compact plain|multiplexed, or peer server binary|compact")
		os.Exit(2)
	}
}
