package otlp

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
)

// A late refusal of an earlier token must not discard the current token.
func TestRefusedToken(t *testing.T) {
	s := &tokens{current: &oauth2.Token{AccessToken: "new"}}
	s.markAccepted("new")
	require.True(t, s.refused("old"), "the current one may work")
	current, ok := s.valid()
	require.True(t, ok)
	require.Equal(t, "new", current)
	require.True(t, s.refused("new"), "it worked before")
	_, ok = s.valid()
	require.False(t, ok)

	s.current = &oauth2.Token{AccessToken: "newest"}
	require.False(t, s.refused("newest"), "no token has worked since it came")
}
