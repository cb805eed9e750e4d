// The library centrifuge, version 0.15 of 2021, behind HTTP: POST /publish/KEY with a body, or POST
// /publish with one JSON object per line. Listens on 127.0.0.1:PORT.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/centrifugal/centrifuge"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: centrifuge PORT")
	}
	node, err := centrifuge.New(centrifuge.DefaultConfig)
	if err != nil {
		log.Fatal(err)
	}
	node.OnConnecting(func(context.Context, centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		return centrifuge.ConnectReply{Credentials: &centrifuge.Credentials{}}, nil
	})
	node.OnConnect(func(client *centrifuge.Client) {
		client.OnSubscribe(func(_ centrifuge.SubscribeEvent, cb centrifuge.SubscribeCallback) {
			cb(centrifuge.SubscribeReply{}, nil)
		})
	})
	if err := node.Run(); err != nil {
		log.Fatal(err)
	}
	http.Handle("/ws", centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{}))
	http.HandleFunc("/publish/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		data, _ := json.Marshal(string(body))
		if err == nil {
			_, err = node.Publish(strings.TrimPrefix(r.URL.Path, "/publish/"), data)
		}
		answer(w, err)
	})
	http.HandleFunc("/publish", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		for _, line := range bytes.Split(body, []byte{'\n'}) {
			var message struct {
				Key  string
				Body json.RawMessage
			}
			if err != nil || len(line) == 0 {
				break
			}
			if err = json.Unmarshal(line, &message); err == nil {
				_, err = node.Publish(message.Key, message.Body)
			}
		}
		answer(w, err)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}
