package train

import "math"

// Rate returns the learning rate of a step, counted from 0, of a run of steps:
//
//	warm-up (step < w):  LR·(step+1)/w
//	then, with x = (step−w)/(steps−w):
//	cosine:    MinLR + (LR−MinLR)·(1+cos πx)/2
//	linear:    LR + (MinLR−LR)·x
//	constant:  LR
//	wsd:       LR, and over the last d steps linear to MinLR, with d DecaySteps
//	           or a fifth of all, but no more than follow the warm-up
//	           (Hu et al., MiniCPM, arXiv 2404.06395)
func (s Settings) Rate(step, steps int) float64 {
	w := s.Warmup
	if step < w {
		return s.LR * float64(step+1) / float64(w)
	}
	x := float64(step-w) / float64(max(steps-w, 1))
	switch s.Schedule {
	case "cosine":
		return s.MinLR + (s.LR-s.MinLR)*(1+math.Cos(math.Pi*x))/2
	case "linear":
		return s.LR + (s.MinLR-s.LR)*x
	case "wsd":
		d := s.DecaySteps
		if d == 0 {
			d = min((steps+4)/5, steps-w)
		}
		if begin := steps - d; step >= begin {
			return s.LR + (s.MinLR-s.LR)*float64(step-begin)/float64(d)
		}
	}
	return s.LR
}
