package report

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/combin"
	"gonum.org/v1/gonum/stat/distuv"
)

const (
	// Confidence is the confidence level of the displayed intervals.
	Confidence = 0.95
	// FalseAlarms limits the comparisons of an unchanged program that name a function by chance. 1 of 100 names a function with a
	// larger share, and 1 of 100 names a function with a smaller share.
	FalseAlarms = 0.02
	// power is the statistical power: the probability with which a test must find a detectable change.
	power = 0.9
	// leastExpected is the number of samples that a share needs on each side for a test, by Cochran's rule.
	leastExpected = 5
	// leastShare is the share that a part needs for a test if each side has only one run. The time of smaller parts varies more
	// between runs than the samples of one run show.
	leastShare = 0.005
)

// draw is a share, with its equivalent number of equally weighted samples.
type draw struct{ share, n float64 }

// reaches returns the random error of a share, down and up, for a quantile z. It uses the Agresti–Coull interval.
func (d draw) reaches(z float64) (down, up float64) {
	m := d.n + z*z
	middle := (d.share*d.n + z*z/2) / m
	reach := z * math.Sqrt(middle*(1-middle)/m)
	return max(0, d.share-max(0, middle-reach)), max(0, min(1, middle+reach)-d.share)
}

// chance returns the random error of the share k of n. It returns 0 if the error is less than a percentage point.
func chance(k, n int64) float64 {
	if n <= 0 || k <= 0 {
		return 0
	}
	down, up := draw{float64(k) / float64(n), float64(n)}.reaches(quantile(1-Confidence, math.Inf(1)))
	if e := max(down, up); e >= 0.01 {
		return e
	}
	return 0
}

// quantile returns the quantile for the two-sided probability p, in standard errors. If the standard error is estimated, it uses
// Student's t-distribution with these degrees of freedom.
func quantile(p, freedom float64) float64 {
	if math.IsInf(freedom, 1) {
		return -mathext.NormalQuantile(p / 2)
	}
	return -distuv.StudentsT{Sigma: 1, Nu: freedom}.Quantile(p / 2)
}

// student converts the two-sided probability p from the normal distribution to Student's t-distribution.
func student(p, freedom float64) float64 {
	if math.IsInf(freedom, 1) || p >= 1 {
		return p
	}
	return 2 * distuv.StudentsT{Sigma: 1, Nu: freedom}.CDF(mathext.NormalQuantile(max(p, 1e-300)/2))
}

// between returns Newcombe's interval for the difference of two shares, which combines the intervals of both.
func between(before, after draw, z float64) (low, high float64) {
	downBefore, upBefore := before.reaches(z)
	downAfter, upAfter := after.reaches(z)
	d := after.share - before.share
	return d - math.Hypot(downAfter, upBefore), d + math.Hypot(upAfter, downBefore)
}

// unchanged returns the two-sided probability of such a difference between two shares without a change (Fisher's exact test).
func unchanged(before, after draw) float64 {
	n, m := math.Round(before.n), math.Round(after.n)
	k, l := math.Round(before.share*n), math.Round(after.share*m)
	if l*(n+m) < (k+l)*m { // it sums the upper tail
		n, m, k, l = m, n, l, k
	}
	all := k + l
	ways := combin.LogGeneralizedBinomial
	sum, term := 1.0, 1.0
	for x := l; x < min(m, all) && term > 1e-17*sum; x++ {
		term *= (m - x) * (all - x) / ((x + 1) * (n - all + x + 1))
		sum += term
	}
	return min(1, 2*sum*math.Exp(ways(m, l)+ways(n, k)-ways(n+m, all)))
}

// detectable returns the increase of a share p, from n samples to m, that a test with the significance level alpha finds. It
// returns the maximum, 1 - p, if no increase is large enough.
func detectable(p, n, m, alpha, freedom float64) float64 {
	if n <= 0 || m <= 0 {
		return 1 - p
	}
	a := quantile(alpha, freedom)
	b := quantile(2*(1-power), math.Inf(1)) * math.Sqrt(1+a*a/(2*freedom)) // the estimate of the error varies, too
	d := 0.0
	for range 20 { // each round comes closer
		grown := min(1, p+d)
		middle := (p*n + grown*m) / (n + m)
		d = a*math.Sqrt(middle*(1-middle)*(1/n+1/m)) + b*math.Sqrt(p*(1-p)/n+grown*(1-grown)/m)
	}
	return min(d, 1-p)
}

// spread is the variation of shares between runs, relative to the sampling variation.
type spread struct{ factor, freedom float64 }

// moderate returns the typical value of estimated factors, and the degrees of freedom of this value. logs are the logarithms of
// the factors. Each factor has its own degrees of freedom (Smyth's empirical Bayes, as in limma). A function with few runs then
// uses information from other functions. With one run for each side, nothing is estimated, and freedom is 0.
func moderate(logs []float64, freedom float64) spread {
	switch {
	case freedom == 0:
		return spread{1, math.Inf(1)}
	case len(logs) < 3:
		return spread{1, 0}
	}
	slices.Sort(logs) // for the same sum each time
	mean, variance := stat.MeanVariance(logs, nil)
	mean += math.Log(freedom/2) - mathext.Digamma(freedom/2)
	if variance -= mathext.Zeta(2, freedom/2); variance <= 0 {
		return spread{math.Exp(mean), math.Inf(1)}
	}
	half := 0.5 + 1/variance // then Newton's method for Zeta(2, half) = variance
	for range 8 {
		z := mathext.Zeta(2, half)
		half -= z * (1 - z/variance) / (2 * mathext.Zeta(3, half))
	}
	return spread{math.Exp(mean + mathext.Digamma(half) - math.Log(half)), 2 * half}
}

// with estimates one function's spread from the typical spread and the function's own runs. The result is at least the spread of
// these runs, because some functions differ from most, and at least 1.
func (s spread) with(factor, freedom float64) spread {
	if math.IsInf(s.freedom, 1) {
		return spread{max(1, s.factor), s.freedom}
	}
	both := s.freedom + freedom
	return spread{max(1, factor, (s.freedom*s.factor+freedom*factor)/both), both}
}
