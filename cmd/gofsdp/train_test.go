package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// panicking is a device with a mistake.
type panicking struct{ device.Device }

func (panicking) PeakFLOPS(device.DType, time.Duration) float64 { panic("out of range") }

func TestAProgramsMistakeIsRecordedAsTheRunsEnd(t *testing.T) {
	recorder, _ := recorderIn(t)
	j := &job{app: recorder.app, cfg: &config.Config{}, run: &train.Run{}, dev: panicking{device.NewReference()}, dir: recorder.dir, rec: record.NewRun(), flight: recorder}
	j.run.Plan = &fsdp.Plan{}
	var err error
	if j.recorder, err = train.NewRecorder(j.dir, time.Now(), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.reserve(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if p := recover(); p != "out of range" {
				t.Errorf("it went on with %v", p)
			}
		}()
		_ = j.train()
		t.Error("the panic was swallowed")
	}()
	rec, err := j.dir.ReadRun()
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := rec.Outcome.ExitCode.Get(); code != 1 || !strings.Contains(rec.Outcome.Reason, "panic: out of range") {
		t.Errorf("the record says %+v", rec.Outcome)
	}
}

func TestARunLeavesTheDirectoryToAnotherThatTookItsName(t *testing.T) {
	storage := t.TempDir()
	theirs := filepath.Join(storage, "a", "run.json")
	if err := os.Mkdir(filepath.Dir(theirs), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(theirs, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	j := &job{cfg: &config.Config{Run: config.Run{StoragePath: storage, Name: "a"}}}
	if err := j.create("run.yaml", nil); err == nil || !strings.Contains(err.Error(), "it exists and is not empty") {
		t.Error(err)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error("the other run has lost its files:", err)
	}
}
